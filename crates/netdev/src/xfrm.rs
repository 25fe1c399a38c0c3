//! IPsec policies of the kernel (xfrm).

use netlink_sys::protocols::NETLINK_XFRM;

use crate::attributes::Attributes;
use crate::request::{RawMessage, Requester};
use crate::{Error, Result};

/// XFRM_MSG_GETSPDINFO of `linux/xfrm.h`.
const GET_POLICY_COUNTS: u16 = 0x25;
/// XFRMA_SPD_INFO of the response, a `struct xfrmu_spdinfo`.
const COUNTS: u16 = 1;
/// The unused flags at the start of the request and of its response.
const FLAGS_BYTES: usize = 4;

/// The number of IPsec policies for packets of the calling thread's network namespace: received,
/// sent and forwarded ones. Policies of single sockets do not count. 0 on a kernel without IPsec.
///
/// # Errors
/// [`Error::is_permission`] without CAP_NET_ADMIN.
pub fn ipsec_policies() -> Result<u32> {
    let what = "count IPsec policies";
    let socket = match Requester::open(NETLINK_XFRM) {
        Err(error) if error.errno() == Some(libc::EPROTONOSUPPORT) => return Ok(0),
        opened => opened?,
    };
    let request = RawMessage { kind: GET_POLICY_COUNTS, payload: vec![0; FLAGS_BYTES] };
    let responses = socket.request(what, request, 0)?;
    let payload = responses.first().map(|response| response.payload.as_slice());
    payload.and_then(policies_in).ok_or_else(|| Error::malformed(what, "no counts"))
}

/// The sum of the first three counts: received, sent and forwarded packets.
fn policies_in(payload: &[u8]) -> Option<u32> {
    let counts = Attributes::new(payload.get(FLAGS_BYTES..)?).get(COUNTS)?;
    let counts = counts.get(..12)?.chunks_exact(4).filter_map(<[u8]>::first_chunk);
    Some(counts.map(|count| u32::from_ne_bytes(*count)).fold(0, u32::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::AttributeBuf;

    #[test]
    fn policies_of_sockets_do_not_count() {
        let counts = [1_u32, 2, 4, 8, 16, 32].map(u32::to_ne_bytes).concat();
        let attributes = AttributeBuf::default().push(COUNTS, &counts).into_bytes();
        let payload = [vec![0; FLAGS_BYTES], attributes].concat();
        assert_eq!(policies_in(&payload), Some(7));
        for len in 0..FLAGS_BYTES + 4 + 12 {
            assert_eq!(policies_in(&payload[..len]), None, "{len}");
        }
    }
}
