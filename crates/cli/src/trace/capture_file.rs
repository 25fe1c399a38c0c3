//! Reads one frame of a capture file.

use anyhow::{Context, Result, anyhow, bail};
use flow::{FlowKey, PortNo};
use packet::PacketBuf;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use std::path::Path;

/// The longest accepted block. Frames have at most 256 KiB (pcap(3PCAP)).
const MAX_BLOCK_BYTES: usize = 1 << 20;

/// The flow key of a frame of a capture file that `in_port` receives. `number` counts from 1.
///
/// # Errors
/// The file is not a capture, has no such frame, or the frame is malformed.
pub fn key(path: &Path, number: u64, in_port: PortNo) -> Result<FlowKey> {
    let name = path.display();
    let frame = read(path, number).with_context(|| format!("cannot read {name}"))?;
    flow::extract(&PacketBuf::from_bytes(&frame), in_port, None).with_context(|| {
        format!("frame {number} of {name} is malformed, and the switch would drop it")
    })
}

fn read(path: &Path, number: u64) -> Result<Vec<u8>> {
    let file = netdev::regular_file::open(path)?;
    let mut reader = create_reader(MAX_BLOCK_BYTES, file)
        .map_err(|error| anyhow!("not a capture file (pcap or pcapng): {}", reason(&error)))?;
    let mut link_types = Vec::new();
    let mut count = 0;
    loop {
        let length = match reader.next() {
            Ok((length, block)) => {
                if let Some((interface, frame)) = frame_in(&block, &mut link_types) {
                    count += 1;
                    if count == number {
                        return match link_types.get(interface) {
                            Some(&Linktype::ETHERNET) => Ok(frame.to_vec()),
                            Some(other) => {
                                bail!("frame {number} is not Ethernet: its link type is {other}")
                            }
                            None => bail!("frame {number} refers to an undefined interface"),
                        };
                    }
                }
                length
            }
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|error| anyhow!(reason(&error)))?;
                continue;
            }
            Err(PcapError::Eof) => bail!("no frame {number}: the file has {count} frames"),
            Err(error) => bail!("frame {}: {}", count + 1, reason(&error)),
        };
        reader.consume(length);
    }
}

/// The frame of a block, if it has one, and the index of its interface in `link_types`. Blocks that
/// describe interfaces extend `link_types`; a pcap file has a single interface.
fn frame_in<'b>(
    block: &'b PcapBlockOwned<'_>,
    link_types: &mut Vec<Linktype>,
) -> Option<(usize, &'b [u8])> {
    match block {
        PcapBlockOwned::LegacyHeader(header) => *link_types = vec![header.network],
        PcapBlockOwned::NG(Block::SectionHeader(_)) => link_types.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
            link_types.push(interface.linktype);
        }
        PcapBlockOwned::Legacy(block) => return Some((0, block.data)),
        PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
            return Some((block.if_id as usize, block.packet_data()));
        }
        PcapBlockOwned::NG(Block::SimplePacket(block)) => return Some((0, block.packet_data())),
        PcapBlockOwned::NG(_) => {}
    }
    None
}

fn reason<T>(error: &PcapError<T>) -> &'static str {
    match error {
        PcapError::Eof => "the file is empty",
        PcapError::Incomplete(_) | PcapError::UnexpectedEof => "the file ends within a block",
        PcapError::BufferTooSmall => "a block is longer than 1 MiB",
        PcapError::ReadError => "read error",
        PcapError::HeaderNotRecognized | PcapError::NomError(..) | PcapError::OwnedNomError(..) => {
            "a block is malformed"
        }
    }
}
