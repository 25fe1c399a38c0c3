//! `weft capture`: the frames of a guest, as a capture file.

use crate::control::answers::{CaptureStart, FrameRow};
use crate::control::{Next, Request, Stream, Target};
use crate::pcap::PcapWriter;
use crate::text::written;
use crate::{Failure, text};
use anyhow::{Context, anyhow};
use netdev::signal::Signals;
use packet::PacketBuf;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Capture the frames of a guest into a file for tcpdump, tshark and Wireshark (pcap with nanoseconds).
///
/// --inner (the default) has what the guest sends and gets at its own interface. --outer has the same frames as they are on
/// the underlay, with their true outer headers, both ways; for STT, all segments of a frame.
///
/// Super-packets are there as they are: up to 64 KiB in one frame, with checksums that the network card would have filled in.
/// What cannot be written in time is counted as missed; forwarding never waits. Ctrl-C ends it with a file that is whole.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// The port, by its name in the network file
    port: String,
    /// What the guest sends and gets; this is the default
    #[arg(long, conflicts_with = "outer")]
    inner: bool,
    /// What is on the underlay
    #[arg(long)]
    outer: bool,
    /// The file; - for standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Keep only so many bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_MAX, value_parser = clap::value_parser!(u32).range(14..=SNAP_MAX as i64))]
    snap: u32,
    /// End after so many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Tell the result on standard error as a JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft capture vm1 --host h1 -w vm1.pcap
  weft capture vm1 --host h1 -w - | tcpdump -nr -
  weft capture vm1 --host h1 --outer --snap 128 --count 1000 -w - | tshark -r - -V

Exit codes: 0 ended by Ctrl-C, --count or a reader that has enough; 1 no daemon answers or it has ended (what was captured
is in the file); 2 bad usage, no such port, a file that cannot be written.";

/// The longest frame.
const SNAP_MAX: u32 = PacketBuf::MAX_FRAME as u32;
/// How often it is looked for Ctrl-C when no frames come.
const LOOK: Duration = Duration::from_millis(100);

pub fn capture(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    let is_stdout = args.write == Path::new("-");
    if is_stdout && io::stdout().is_terminal() {
        return Err(Failure::Input(anyhow!(
            "a terminal cannot show a capture: pipe it, as in `weft capture {} -w - | tcpdump -nr -`",
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
    // Not made for a port that does not exist.
    let out: Box<dyn Write> = if is_stdout { Box::new(io::stdout()) } else { create(&args.write)? };
    if !args.json {
        eprintln!("weft: {}; Ctrl-C ends it", start.what);
    }
    let mut capture = Capture { count: args.count, frames: 0, missed: 0, pcap: begin(out, args)? };
    let result = capture.take_all(&mut stream, &signals);
    // What was captured is whole, whatever has ended it.
    let flushed = written(capture.pcap.flush());
    let Capture { frames, missed, .. } = capture;
    if args.json {
        eprintln!("{}", json!({ "frames": frames, "missed": missed }));
    } else {
        let missed = if missed == 0 { String::new() } else { format!(", {missed} missed") };
        eprintln!("weft: {frames} packets{missed} in {}", text::name(&args.write));
    }
    result.and(flushed)
}

fn create(path: &Path) -> Result<Box<dyn Write>, Failure> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()));
    Ok(Box::new(file.map_err(Failure::Input)?))
}

type Pcap = PcapWriter<BufWriter<Box<dyn Write>>>;

fn begin(out: Box<dyn Write>, args: &Args) -> Result<Pcap, Failure> {
    let mut pcap = PcapWriter::new(BufWriter::new(out), args.snap).context("begin the capture")?;
    // Who reads along wants to know at once what it is.
    written(pcap.flush())?;
    Ok(pcap)
}

/// A capture as it goes on.
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
            match stream.next::<FrameRow, Value>(LOOK)? {
                Next::Row(row) => {
                    self.take(&row)?;
                    if !stream.has_more() {
                        written(self.pcap.flush())?;
                    }
                }
                Next::Nothing => {}
                Next::End(_) | Next::HungUp => return Err(anyhow!("the daemon has ended").into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, row: &FrameRow) -> Result<(), Failure> {
        let bytes = bytes(&row.bytes).context("the daemon's frame is not in hexadecimal")?;
        written(self.pcap.write(Duration::from_nanos(row.time_ns), row.len, &bytes))?;
        self.frames += 1;
        self.missed += row.missed;
        Ok(())
    }
}

/// Bytes in hexadecimal.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let pair = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read_in_pairs() {
        assert_eq!(bytes("00fF1a"), Some(vec![0, 0xff, 0x1a]));
        assert_eq!(bytes(""), Some(vec![]));
        assert_eq!((bytes("0"), bytes("0g")), (None, None));
    }
}
