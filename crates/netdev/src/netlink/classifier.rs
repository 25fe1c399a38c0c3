//! tc filters.

use super::{Ifindex, Netlink};
use crate::Result;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcMessage};

impl Netlink {
    /// The number of filters at the ingress and egress hooks of a device; 0 without a clsact qdisc.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn tc_filter_count(&self, index: Ifindex) -> Result<usize> {
        let what = format!("list filters of link {index}");
        let mut count = 0;
        for hook in [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS] {
            let mut message = TcMessage::default();
            message.header.index = index.0.cast_signed();
            message.header.parent = TcHandle { major: u16::MAX, minor: hook };
            let answers = self.dump(&what, RouteNetlinkMessage::GetTrafficFilter(message))?;
            // The kernel also lists an entry for each chain and priority, which has no handle.
            let is_filter = |answer: &RouteNetlinkMessage| match answer {
                RouteNetlinkMessage::NewTrafficFilter(filter) => {
                    u32::from(filter.header.handle) != 0
                }
                _ => false,
            };
            count += answers.iter().filter(|answer| is_filter(answer)).count();
        }
        Ok(count)
    }
}
