//! Filters of traffic control.

use super::{Ifindex, Netlink};
use crate::Result;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcMessage};

impl Netlink {
    /// How many filters the queueing discipline clsact of a device has, at ingress and egress; 0 when it has no clsact.
    ///
    /// # Errors
    /// There is no such device.
    pub fn filters(&self, index: Ifindex) -> Result<usize> {
        let what = format!("list filters of link {index}");
        let mut count = 0;
        for hook in [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS] {
            let mut message = TcMessage::default();
            message.header.index = index.0.cast_signed();
            message.header.parent = TcHandle { major: u16::MAX, minor: hook };
            let answers = self.dump(&what, RouteNetlinkMessage::GetTrafficFilter(message))?;
            // The first of each priority stands for the chain: it has no handle.
            let is_filter = |answer: &RouteNetlinkMessage| matches!(answer, RouteNetlinkMessage::NewTrafficFilter(filter) if u32::from(filter.header.handle) != 0);
            count += answers.iter().filter(|answer| is_filter(answer)).count();
        }
        Ok(count)
    }
}
