//! Removes source lines from the BPF objects that the daemon contains, to make it smaller.
//!
//! The section `.BTF.ext` records the source line of instructions, for readers of the verifier's
//! log. It would be half of the objects. The kernel needs a record only for the first instruction
//! of each function. Without these, libbpf prints a warning for each program.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The beginning of `.BTF.ext`: magic number, version 1, no flags, and a header of 32 bytes.
const START: [u8; 8] = [0x9f, 0xeb, 1, 0, 32, 0, 0, 0];
const HEADER_LEN: usize = 32;
/// Offsets in the header: each of the two fields has offset and length of a table, for functions
/// and for lines.
const FUNC_INFO: usize = 8;
const LINE_INFO: usize = 16;
/// Bytes of the number in front of each table, which is the length of its records.
const RECORD_LEN: usize = 4;
/// Bytes in front of the records of a section: its name, and the number of records.
const SECTION_HEADER_LEN: usize = 8;
/// Offset of the line's text in a record about a line.
const LINE_OFF: usize = 8;

/// The records of one ELF section of programs.
struct Section {
    /// The string offset of its name.
    name: usize,
    /// The range of each record.
    records: Vec<Range<usize>>,
}

/// Keeps the records of lines that begin a function, without the line's text.
pub fn reduce(object: &Path) -> Result<()> {
    let mut bytes = fs::read(object)?;
    let starts = bytes.windows(START.len()).enumerate().filter(|(_, window)| *window == START);
    let [header] = starts.map(|(at, _)| at).collect::<Vec<_>>()[..] else {
        bail!("{} has not exactly one header of .BTF.ext", object.display());
    };
    let mut functions = Vec::new();
    for section in sections(&bytes, header, FUNC_INFO)? {
        for record in section.records {
            functions.push((section.name, number(&bytes, record.start)?));
        }
    }
    let lines = header + HEADER_LEN + number(&bytes, header + LINE_INFO)?;
    let mut kept = bytes[lines..lines + RECORD_LEN].to_vec();
    for section in sections(&bytes, header, LINE_INFO)? {
        let begins_function = |record: &Range<usize>| {
            number(&bytes, record.start).is_ok_and(|at| functions.contains(&(section.name, at)))
        };
        let records = section.records.iter().filter(|record| begins_function(record));
        let records: Vec<_> = records.cloned().collect();
        kept.extend(u32::try_from(section.name)?.to_le_bytes());
        kept.extend(u32::try_from(records.len())?.to_le_bytes());
        for record in records {
            let mut record = bytes[record].to_vec();
            record[LINE_OFF..LINE_OFF + 4].fill(0);
            kept.extend(record);
        }
    }
    bytes[lines..lines + kept.len()].copy_from_slice(&kept);
    let len = header + LINE_INFO + 4;
    bytes[len..len + 4].copy_from_slice(&u32::try_from(kept.len())?.to_le_bytes());
    Ok(fs::write(object, bytes)?)
}

/// The sections of the table that the header names at `place`.
fn sections(bytes: &[u8], header: usize, place: usize) -> Result<Vec<Section>> {
    let start = header + HEADER_LEN + number(bytes, header + place)?;
    let end = start + number(bytes, header + place + 4)?;
    let len = number(bytes, start)?;
    let mut sections = Vec::new();
    let mut at = start + RECORD_LEN;
    while at < end {
        let (name, count) = (number(bytes, at)?, number(bytes, at + 4)?);
        let first = at + SECTION_HEADER_LEN;
        at = first + count * len;
        let records = (0..count).map(|index| first + index * len..first + (index + 1) * len);
        sections.push(Section { name, records: records.collect() });
    }
    Ok(sections)
}

fn number(bytes: &[u8], at: usize) -> Result<usize> {
    let number = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    Ok(u32::from_le_bytes(*number.context(".BTF.ext is cut")?) as usize)
}
