//! `weft capture`: writes the frames of a guest to a capture file.

use crate::control::replies::{CaptureStart, FrameRow};
use crate::control::{DAEMON_EXITED, DaemonSelector, Request, Stream, StreamEvent};
use crate::pcap::PcapWriter;
use crate::stdio::check_write;
use crate::{Failure, stdio};
use anyhow::{Context, anyhow};
use netdev::signal::Signals;
use packet::PacketBuf;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Capture the frames of a guest into a pcap file for tcpdump, tshark or Wireshark.
///
/// --inner (the default) captures what the guest sends and receives at its own interface. --outer
/// captures the same frames on the underlay, in both directions and with their outer headers; for
/// STT, all segments of a frame.
///
/// Super-packets appear whole: one frame of up to 64 KiB, with checksums that the network card
/// would have filled in. Timestamps have nanoseconds. If the output is too slow, frames are counted
/// as missed; forwarding never waits. Ctrl-C ends the capture with a complete file.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// The name of the port in the network file
    port: String,
    /// Capture at the interface of the guest (the default)
    #[arg(long, conflicts_with = "outer")]
    inner: bool,
    /// Capture on the underlay, with outer headers
    #[arg(long)]
    outer: bool,
    /// The capture file; - for standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Keep at most this many bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_MAX,
          value_parser = clap::value_parser!(u32).range(14..=SNAP_MAX as i64))]
    snap: u32,
    /// Exit after this many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print the frame counts on standard error as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft capture vm1 --host h1 -w vm1.pcap
  weft capture vm1 --host h1 -w - | tcpdump -nr -
  weft capture vm1 --host h1 --outer --snap 128 --count 1000 -w - | tshark -r - -V

Exit codes: 0 ended by Ctrl-C, by --count or by a closed pipe, 1 no daemon replies or the daemon
exited (the file is complete up to then), 2 bad usage, an unknown port or an unwritable file.";

/// The length of the longest frame.
const SNAP_MAX: u32 = PacketBuf::MAX_FRAME as u32;
/// How often an idle capture checks for Ctrl-C.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub fn capture(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    let is_stdout = args.write == Path::new("-");
    if is_stdout && io::stdout().is_terminal() {
        return Err(Failure::Input(anyhow!(
            "cannot write a capture to a terminal: pipe it, as in \
             `weft capture {} -w - | tcpdump -nr -`",
            args.port
        )));
    }
    let signals = Signals::take()?;
    let request = Request::Capture {
        port: args.port.clone(),
        outer: args.outer,
        snap_bytes: args.snap as usize,
    };
    let (start, mut stream): (CaptureStart, _) = Stream::open(&path, &request)?;
    // Created only after the daemon has accepted the port.
    let out: Box<dyn Write> = if is_stdout { Box::new(io::stdout()) } else { create(&args.write)? };
    if !args.json {
        eprintln!("weft: capturing {}; press Ctrl-C to stop", start.what);
    }
    let mut capture = Capture { count: args.count, frames: 0, missed: 0, pcap: begin(out, args)? };
    let result = capture.take_all(&mut stream, &signals);
    // Also after an error: the frames so far make a complete file.
    let flushed = check_write(capture.pcap.flush());
    let Capture { frames, missed, .. } = capture;
    if args.json {
        eprintln!("{}", json!({ "frames": frames, "missed": missed }));
    } else {
        let missed = if missed == 0 { String::new() } else { format!(", {missed} missed") };
        eprintln!("weft: {frames} packets{missed} in {}", stdio::display_name(&args.write));
    }
    result.and(flushed)
}

fn create(path: &Path) -> Result<Box<dyn Write>, Failure> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()));
    Ok(Box::new(file.map_err(Failure::Input)?))
}

type Pcap = PcapWriter<BufWriter<Box<dyn Write>>>;

fn begin(out: Box<dyn Write>, args: &Args) -> Result<Pcap, Failure> {
    let mut pcap = PcapWriter::new(BufWriter::new(out), args.snap)
        .context("cannot write the header of the capture file")?;
    // A reader of a pipe waits for the file header before it starts.
    check_write(pcap.flush())?;
    Ok(pcap)
}

/// A running capture.
struct Capture {
    count: Option<u64>,
    frames: u64,
    missed: u64,
    pcap: Pcap,
}

impl Capture {
    fn take_all(&mut self, stream: &mut Stream, signals: &Signals) -> Result<(), Failure> {
        while self.count.is_none_or(|count| self.frames < count) {
            if signals.read()?.is_some() {
                return Ok(());
            }
            match stream.next::<FrameRow, Value>(SIGNAL_CHECK_INTERVAL)? {
                StreamEvent::Row(row) => {
                    self.take(&row)?;
                    if !stream.has_more() {
                        check_write(self.pcap.flush())?;
                    }
                }
                StreamEvent::Timeout => {}
                StreamEvent::End(_) | StreamEvent::Closed => {
                    return Err(anyhow!(DAEMON_EXITED).into());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, row: &FrameRow) -> Result<(), Failure> {
        let bytes = parse_hex(&row.bytes)
            .context("invalid frame from the daemon: its bytes are not hexadecimal")?;
        check_write(self.pcap.write(Duration::from_nanos(row.time_ns), row.len, &bytes))?;
        self.frames += 1;
        self.missed += row.missed;
        Ok(())
    }
}

/// Parses pairs of hexadecimal digits; `None` if the text is anything else.
fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let pair = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_hex_accepts_complete_pairs_only() {
        assert_eq!(parse_hex("00fF1a"), Some(vec![0, 0xff, 0x1a]));
        assert_eq!(parse_hex(""), Some(vec![]));
        assert_eq!((parse_hex("0"), parse_hex("0g")), (None, None));
    }
}
