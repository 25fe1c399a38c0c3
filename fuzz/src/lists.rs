//! Several frames in one input. Each is preceded by its length in two bytes, big-endian.

use crate::frames::join;

/// Maximum number of frames in one input.
const MAX_FRAMES: usize = 64;

/// Encodes frames as an input for [`read`].
pub fn build(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().flat_map(|f| join(&[&(f.len() as u16).to_be_bytes(), f])).collect()
}

/// The frames of an input. The last one may be truncated.
pub fn read(mut input: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let (Some((len, rest)), true) = (input.split_first_chunk(), frames.len() < MAX_FRAMES) {
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        frames.push(frame);
        input = rest;
    }
    frames
}
