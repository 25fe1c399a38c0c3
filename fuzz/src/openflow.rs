//! Target: requests of OpenFlow clients.

use openflow::{BridgeKind, HEADER_LEN, message_len, reply};
use pipeline::Program;
use std::convert::Infallible;

/// Processes a request for both types of bridges. Each message of a reply must have the length in
/// its header, and the transaction ID of the request. Returns whether there was a reply.
pub fn request(bytes: &[u8]) -> bool {
    let mut is_answered = false;
    for bridge in [BridgeKind::Integration, BridgeKind::Provider] {
        let sent: Result<(), Infallible> = reply(bytes, bridge, Program::default, |message| {
            is_answered = true;
            let header = message.first_chunk::<HEADER_LEN>().expect("a message has a header");
            assert_eq!(message_len(header), Some(message.len()));
            assert_eq!(message.get(4..8), bytes.get(4..8), "the number of the request");
            Ok(())
        });
        let Ok(()) = sent;
    }
    is_answered
}
