//! Traffic control: filters and queueing disciplines.

use super::{Ifindex, Netlink};
use crate::Result;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};

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

    /// The packets that the root qdisc of a device has dropped since it was added, modulo 2^32; 0
    /// for a device without a queue, or if there is no such device.
    ///
    /// The kernel lists the qdiscs of all devices for this. An answer for one device would go to
    /// all programs that wait for changes of qdiscs.
    pub fn qdisc_drops(&self, index: Ifindex) -> Result<u32> {
        let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let qdiscs = self.dump("list qdiscs", request)?.into_iter().filter_map(|answer| {
            let RouteNetlinkMessage::NewQueueDiscipline(qdisc) = answer else { return None };
            let is_root = qdisc.header.parent == TcHandle::ROOT;
            (is_root && qdisc.header.index == index.0.cast_signed()).then_some(qdisc.attributes)
        });
        let mut stats = qdiscs.flatten().flat_map(|attribute| match attribute {
            TcAttribute::Stats2(stats) => stats,
            _ => Vec::new(),
        });
        let drops = stats.find_map(|stats| match stats {
            TcStats2::Queue(queue) => Some(queue.drops),
            _ => None,
        });
        Ok(drops.unwrap_or(0))
    }
}
