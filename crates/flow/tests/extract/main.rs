//! Tests of key extraction: tables of frames and keys, published faults of other switches,
//! comparison with `etherparse`, and tunnels.

mod faults;
mod frame;
mod oracle;
mod protocols;
mod tunnels;

use flow::{Field, FlowKey, PortNo, extract};
use packet::PacketBuf;
use wire::ParseError;

const PORT: PortNo = PortNo(7);

/// The key of a frame that arrived on [`PORT`] without a tunnel.
fn key_of(frame: &[u8]) -> Result<FlowKey, ParseError> {
    extract(&PacketBuf::from_bytes(frame), PORT, None)
}

/// A key with these fields, the ingress port, and nothing else.
fn key_with(fields: &[(Field, u128)]) -> FlowKey {
    let mut key = FlowKey::default();
    key.set(Field::InPort, PORT.0.into());
    for &(field, value) in fields {
        key.set(field, value);
        assert_eq!(key.get(field), value, "{field} is too narrow");
    }
    key
}
