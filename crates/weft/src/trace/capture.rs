//! A frame of a capture.

use anyhow::{Context, Result, anyhow, bail};
use flow::{FlowKey, PortNo};
use packet::PacketBuf;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use std::fs::File;
use std::path::Path;

/// Bytes of the longest block of a capture; frames have 256 KiB at most (pcap(3PCAP)).
const MAX_BLOCK_BYTES: usize = 1 << 20;

/// The key of frame `number`, from 1, of a file, which comes in by `in_port`.
pub fn key(path: &Path, number: u64, in_port: PortNo) -> Result<FlowKey> {
    let name = path.display();
    let frame = read(path, number).with_context(|| format!("cannot read {name}"))?;
    flow::extract(&PacketBuf::from_bytes(&frame), in_port, None)
        .with_context(|| format!("frame {number} of {name} is malformed, and dropped"))
}

fn read(path: &Path, number: u64) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut reader = create_reader(MAX_BLOCK_BYTES, file).map_err(|error| {
        anyhow!("it is no capture, neither pcap nor pcapng: {}", reason(&error))
    })?;
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
                            Some(other) => bail!("frame {number} is not Ethernet but {other}"),
                            None => bail!("frame {number} is of an interface not described"),
                        };
                    }
                }
                length
            }
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|error| anyhow!(reason(&error)))?;
                continue;
            }
            Err(PcapError::Eof) => bail!("it has {count} frames, and no frame {number}"),
            Err(error) => bail!("frame {}: {}", count + 1, reason(&error)),
        };
        reader.consume(length);
    }
}

/// The frame in a block, if it has one, and the place of its interface in `link_types`: those of the interfaces of a
/// section, which blocks without a frame tell. A pcap file has one interface.
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
        PcapError::Eof => "it is empty",
        PcapError::Incomplete(_) | PcapError::UnexpectedEof => "it ends in the middle of a block",
        PcapError::BufferTooSmall => "a block is too long",
        PcapError::ReadError => "it cannot be read",
        PcapError::HeaderNotRecognized | PcapError::NomError(..) | PcapError::OwnedNomError(..) => {
            "a block is malformed"
        }
    }
}
