//! The entropy of tunnelled flows: how evenly a network card that hashes outer headers spreads them
//! over its queues.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use packet::PacketBuf;

use crate::lab::{Attachment, Lab, UPLINK};
use crate::study::model::Figures;
use crate::{Error, Result};

/// The number of UDP flows of the guest, each with its own source port.
const FLOWS: u16 = 64;
/// Datagrams of each flow.
const ROUNDS: usize = 8;
const FIRST_PORT: u16 = 40_000;
/// The payload size, which distinguishes these frames from all others.
const PAYLOAD: usize = 700;
/// Queues of the simulated network card.
const QUEUES: usize = 8;
/// How long to wait for frames.
const SETTLE: Duration = Duration::from_millis(200);
/// The key of the Toeplitz hash that Microsoft published for RSS and that network cards use.
const TOEPLITZ: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Sends [`FLOWS`] flows, and analyses the frames on the uplink of the other host.
///
/// # Errors
/// The uplink cannot be captured, or no frame arrives.
pub(super) fn spread(lab: &Lab<'_>, attachment: &Attachment) -> Result<Figures> {
    let (from, to) = (lab.guest(0, 0), lab.guest(1, 0));
    let far = lab.hosts().last().ok_or_else(|| Error::Other("a lab has hosts".into()))?;
    let failed = |e| Error::io("send flows")(e);
    let target = to.run(|| UdpSocket::bind((to.ip4(), 0)))?.map_err(failed)?;
    let at: SocketAddr = target.local_addr().map_err(failed)?;
    // Sets up megaflows and neighbours, so that no later frame takes the slow path.
    send(from, at, 1)?;
    lab.stop().sleep(SETTLE)?;
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    let open = || PacketSocket::open_name(UPLINK, &SocketFilter::everything(), options);
    let uplink = far.netns().run_in(open)??;
    send(from, at, ROUNDS)?;
    lab.stop().sleep(SETTLE)?;
    let mut queues = [0_u64; QUEUES];
    let mut flows: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut frame = PacketBuf::with_capacity(0, 1 << 16);
    while let Ok(Some(_)) = uplink.recv(&mut frame) {
        if let Some(tuple) = tuple(frame.head()).filter(|_| frame.len() > PAYLOAD) {
            let queue = toeplitz(&tuple) as usize % QUEUES;
            if let Some(count) = queues.get_mut(queue) {
                *count += 1;
            }
            *flows.entry(tuple).or_default() += 1;
        }
        frame.reset(0);
    }
    let all: u64 = queues.iter().sum();
    if all == 0 {
        return Err(Error::Other("no frame of the flows was seen on the wire".into()));
    }
    let busiest = queues.iter().copied().max().unwrap_or(0) as f64 / all as f64;
    let more = [
        ("inner_flows", f64::from(FLOWS)),
        ("outer_flows", flows.len() as f64),
        ("busiest_queue_share", busiest),
        ("queues_used", queues.iter().filter(|count| **count > 0).count() as f64),
    ];
    Ok(Figures {
        guest_mtu: attachment.guest_mtu(),
        packets_per_second: None,
        more: more.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Figures::default()
    })
}

fn send(from: &crate::lab::Guest, to: SocketAddr, rounds: usize) -> Result<()> {
    let failed = |e| Error::io("send flows")(e);
    let open = |port| UdpSocket::bind((from.ip4(), port));
    for port in FIRST_PORT..FIRST_PORT + FLOWS {
        let socket = from.run(|| open(port))?.map_err(failed)?;
        for _ in 0..rounds {
            socket.send_to(&[0x5a; PAYLOAD], to).map_err(failed)?;
        }
    }
    Ok(())
}

/// The input of the network card's hash: both addresses, and for UDP or TCP both ports. `None` for
/// frames that are not IP.
fn tuple(frame: &[u8]) -> Option<Vec<u8>> {
    let (addresses, protocol, ports) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = usize::from(frame.get(14)? & 0x0f) * 4;
            (frame.get(26..34)?, *frame.get(23)?, 14 + header)
        }
        [0x86, 0xdd] => (frame.get(22..54)?, *frame.get(20)?, 54),
        _ => return None,
    };
    let mut tuple = addresses.to_vec();
    if matches!(protocol, 6 | 17) {
        tuple.extend_from_slice(frame.get(ports..ports + 4)?);
    }
    Some(tuple)
}

/// The Toeplitz hash: for each 1 bit of the input, the 32-bit window of the key at that position;
/// all windows combined with XOR.
fn toeplitz(input: &[u8]) -> u32 {
    let key = |bit: usize| -> u32 {
        (0..32).fold(0, |window, offset| {
            let at = bit + offset;
            let byte = TOEPLITZ.get(at / 8).copied().unwrap_or(0);
            (window << 1) | u32::from(byte >> (7 - at % 8) & 1)
        })
    };
    (0..input.len() * 8)
        .filter(|bit| input.get(bit / 8).is_some_and(|byte| byte >> (7 - bit % 8) & 1 == 1))
        .fold(0, |hash, bit| hash ^ key(bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_that_of_the_published_examples() {
        // From Microsoft's "Verifying the RSS Hash Calculation": source, destination, ports.
        let input = |source: [u8; 4], target: [u8; 4], ports: [u16; 2]| {
            let mut bytes = [source, target].concat();
            ports.iter().for_each(|port| bytes.extend_from_slice(&port.to_be_bytes()));
            bytes
        };
        let with = input([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]);
        assert_eq!(toeplitz(&with), 0x51cc_c178);
        assert_eq!(toeplitz(&with[..8]), 0x323e_8fc2);
    }

    #[test]
    fn ports_are_hashed_when_there_are_any() {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[23] = 17;
        frame[34..38].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(tuple(&frame).map(|t| t.len()), Some(12));
        frame[23] = 47;
        assert_eq!(tuple(&frame).map(|t| t.len()), Some(8));
        frame[12] = 0x88;
        assert_eq!(tuple(&frame), None);
        assert_eq!(tuple(&[]), None);
    }
}
