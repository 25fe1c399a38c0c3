//! Scatter-gather lists for one system call, kept on the stack: [`IoSlices`] of one frame or UDP
//! batch, [`MessageBatch`] of several.

use std::io::IoSlice;
use std::mem::MaybeUninit;

const MAX_PIECES: usize = 1024;
const MAX_MESSAGES: usize = 64;

/// The pieces of one frame, datagram or UDP batch, in order, up to [`IoSlices::MAX`]. Building a
/// list does not allocate, and initialises only the used part.
pub struct IoSlices<'a> {
    slots: [MaybeUninit<IoSlice<'a>>; MAX_PIECES],
    len: usize,
}

impl<'a> IoSlices<'a> {
    /// The maximum number of pieces of one system call (UIO_MAXIOV).
    pub const MAX: usize = MAX_PIECES;

    /// An empty list.
    #[inline]
    pub const fn new() -> Self {
        Self { slots: [const { MaybeUninit::uninit() }; Self::MAX], len: 0 }
    }

    /// Appends a piece. Returns false, and appends nothing, when the list is full.
    #[inline]
    #[must_use]
    pub fn push(&mut self, piece: &'a [u8]) -> bool {
        let Some(slot) = self.slots.get_mut(self.len) else { return false };
        slot.write(IoSlice::new(piece));
        self.len += 1;
        true
    }

    /// Appends pieces. Returns false, and appends nothing, when they do not all fit.
    #[inline]
    #[must_use]
    pub fn extend(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) -> bool {
        let before = self.len;
        for piece in pieces {
            if !self.push(piece) {
                self.len = before;
                return false;
            }
        }
        true
    }

    /// Removes all pieces.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The pieces as system calls expect them.
    #[inline]
    pub fn as_slice(&self) -> &[IoSlice<'a>] {
        // SAFETY: `push` has initialised the first `len` slots, and MaybeUninit<T> has the layout
        // of T.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }
}

impl Default for IoSlices<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Several messages of several pieces each, to be sent with one system call.
pub struct MessageBatch<'a> {
    pieces: IoSlices<'a>,
    /// The index in `pieces` where each message ends.
    ends: [u16; MAX_MESSAGES],
    len: usize,
}

impl<'a> MessageBatch<'a> {
    /// The maximum number of messages in a list.
    pub const MAX: usize = MAX_MESSAGES;

    /// An empty list.
    pub const fn new() -> Self {
        Self { pieces: IoSlices::new(), ends: [0; Self::MAX], len: 0 }
    }

    /// Appends a message. Returns false, and appends nothing, when the list is full.
    #[must_use]
    pub fn push(&mut self, message: impl IntoIterator<Item = &'a [u8]>) -> bool {
        if self.len == Self::MAX || !self.pieces.extend(message) {
            return false;
        }
        // At most 1024: the capacity of `pieces`.
        self.ends[self.len] = self.pieces.len as u16;
        self.len += 1;
        true
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.len = 0;
        self.pieces.clear();
    }

    /// The messages in order.
    pub fn iter(&self) -> impl Iterator<Item = &[IoSlice<'a>]> {
        let mut start = 0;
        self.ends[..self.len].iter().map(move |&end| {
            let message = &self.pieces.as_slice()[start..usize::from(end)];
            start = usize::from(end);
            message
        })
    }
}

impl Default for MessageBatch<'_> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_refused_when_full_and_nothing_is_appended() {
        let mut pieces = IoSlices::new();
        assert!(pieces.extend([&[1u8][..]; 1023]));
        assert!(!pieces.extend([&[2u8][..]; 2]));
        assert_eq!(pieces.as_slice().len(), 1023);
        assert!(pieces.push(&[3]));
        assert!(!pieces.push(&[4]));
    }

    #[test]
    fn messages_keep_their_pieces_apart() {
        let mut messages = MessageBatch::new();
        assert!(
            messages.push([&b"ab"[..], b"c"]) && messages.push([&b"d"[..]]) && messages.push([])
        );
        let read: Vec<Vec<u8>> =
            messages.iter().map(|m| m.iter().flat_map(|p| p.to_vec()).collect()).collect();
        assert_eq!(read, [&b"abc"[..], b"d", b""]);
        messages.clear();
        assert!(messages.is_empty());
        for _ in 0..MessageBatch::MAX {
            assert!(messages.push([&[0u8][..]]));
        }
        assert!(!messages.push([&[0u8][..]]));
        assert_eq!(messages.len(), 64);
    }
}
