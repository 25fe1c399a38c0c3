//! Writes capture files in the classic pcap format (draft-ietf-opsawg-pcap) with nanosecond
//! timestamps.

use std::io::{self, Write};
use std::time::Duration;

/// Magic number of a file with nanosecond timestamps. All fields have the byte order of this one.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: (u16, u16) = (2, 4);
/// Ethernet frames without their frame check sequence.
const LINKTYPE_ETHERNET: u32 = 1;

/// Writes frames into a capture file.
pub struct PcapWriter<W> {
    out: W,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header. `snap_bytes` is the maximum number of bytes kept of each frame.
    ///
    /// # Errors
    /// Writing to `out` fails, as for the other methods.
    pub fn new(mut out: W, snap_bytes: u32) -> io::Result<Self> {
        let (major, minor) = VERSION;
        out.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        out.write_all(&major.to_le_bytes())?;
        out.write_all(&minor.to_le_bytes())?;
        // Two obsolete fields.
        out.write_all(&[0; 8])?;
        out.write_all(&snap_bytes.to_le_bytes())?;
        out.write_all(&LINKTYPE_ETHERNET.to_le_bytes())?;
        Ok(Self { out })
    }

    /// Writes a frame of `len` bytes that starts with `bytes`. `time` counts since 1970.
    pub fn write(&mut self, time: Duration, len: usize, bytes: &[u8]) -> io::Result<()> {
        // All fields of this header have 32 bits.
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let header = [seconds, time.subsec_nanos(), bytes.len() as u32, len as u32];
        for field in header {
            self.out.write_all(&field.to_le_bytes())?;
        }
        self.out.write_all(bytes)
    }

    /// Flushes `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_parser::{Capture, Linktype, PcapCapture};

    #[test]
    fn written_frames_are_read_back_by_a_pcap_parser() {
        let mut bytes = Vec::new();
        let mut writer = PcapWriter::new(&mut bytes, 96).unwrap();
        writer.write(Duration::new(1_763_750_400, 123_456_789), 60, &[7; 60]).unwrap();
        writer.write(Duration::new(1_763_750_401, 1), 65_000, &[8; 96]).unwrap();
        writer.flush().unwrap();
        assert_eq!(bytes.len(), 24 + 16 + 60 + 16 + 96);
        let file = PcapCapture::from_file(&bytes).unwrap();
        assert_eq!((file.header.snaplen, file.get_datalink()), (96, Linktype::ETHERNET));
        assert!(file.header.is_nanosecond_precision());
        let read: Vec<_> = file
            .blocks
            .iter()
            .map(|block| (block.ts_sec, block.ts_usec, block.caplen, block.origlen, block.data[0]))
            .collect();
        let times = [(1_763_750_400, 123_456_789), (1_763_750_401, 1)];
        assert_eq!(
            read,
            [(times[0].0, times[0].1, 60, 60, 7), (times[1].0, times[1].1, 96, 65_000, 8)]
        );
    }
}
