//! Parses the arguments of `ovs-ofctl packet-out`: a frame, its ingress port, and actions.

use super::actions::ActionParser;
use super::names::PacketKind;
use super::ports::{Ports, Shortened};
use super::text::{Items, Parsed, TextSlice, Value};
use flow::{Field, FlowKey, FlowMask, Match, PortNo};
use packet::PacketBuf;
use pipeline::{Op, TableId};
use std::sync::Arc;

/// The longest frame, in bytes.
const MAX_FRAME: usize = 65_535;
/// The fields that determine which actions are valid for a frame.
const KIND: [Field; 5] =
    [Field::EthType, Field::IpProto, Field::IcmpType, Field::IcmpCode, Field::VlanTci];

/// A frame, and the actions to execute on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOut {
    /// The number of the ingress port in flows.
    pub in_port: PortNo,
    /// The frame, which starts with its Ethernet header.
    pub frame: Vec<u8>,
    /// The steps.
    pub ops: Arc<[Op]>,
}

/// Parses `in_port=PORT packet=HEX actions=ACTIONS`.
pub(super) fn parse(text: TextSlice<'_>, ports: &Ports) -> Parsed<PacketOut> {
    let end = || text.slice(text.text.len(), text.text.len());
    let mut items = Items::new(text);
    let (mut in_port, mut frame, mut actions) = (None, None, None);
    while let Some(item) = items.next() {
        let item = item?;
        match (item.word.text, item.value) {
            ("action" | "actions", Value::Plain(value)) => {
                actions = Some(items.from(value));
                break;
            }
            ("in_port", _) if in_port.is_none() => {
                in_port = Some(ports.parse(item.operand("a port")?)?);
            }
            ("packet", _) if frame.is_none() => {
                let operand = item.operand("a frame in hexadecimal")?;
                frame = Some((bytes(operand)?, operand));
            }
            ("in_port" | "packet", _) => {
                return Err(item.word.fault(format!("duplicate `{}`", item.word.text)));
            }
            (other, _) => {
                let other = Shortened(other);
                return Err(item.word.fault(format!(
                    "`{other}` is not supported: expected `in_port=`, `packet=` and `actions=`"
                )));
            }
        }
    }
    let in_port = in_port.ok_or_else(|| end().expected("`in_port=...`"))?;
    let (frame, written) = frame.ok_or_else(|| end().expected("`packet=...`"))?;
    let actions = actions.ok_or_else(|| end().expected("`actions=...`"))?;
    let key = flow::extract(&PacketBuf::from_bytes(&frame), in_port, None)
        .map_err(|_| written.fault("the frame is malformed"))?;
    let (ops, _) = ActionParser::parse(actions, ports, TableId::FIRST, kind(&key))?;
    Ok(PacketOut { in_port, frame, ops })
}

/// The packet kind of the frame, as for a match that selects it.
fn kind(key: &FlowKey) -> PacketKind {
    let mut mask = FlowMask::default();
    KIND.into_iter().for_each(|field| mask.add(field));
    PacketKind::of(&Match::new(key, mask))
}

fn bytes(text: TextSlice<'_>) -> Parsed<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0);
    let digits = digits.ok_or_else(|| text.expected("pairs of hexadecimal digits"))?;
    if digits.len() / 2 > MAX_FRAME {
        return Err(text.fault(format!("the frame is longer than {MAX_FRAME} bytes")));
    }
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair.iter().fold(0, |byte, half| byte << 4 | half))
        .collect())
}
