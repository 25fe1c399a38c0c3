//! [`LoadBalancer`]: the flows that recognize hairpin packets.
//!
//! A backend may connect to the virtual address of its own load balancer, which may choose that
//! same backend. The switch sends such a packet back to the backend, with the virtual address as
//! its source, so that the replies pass the switch too. Logical flows handle such packets with
//! `chk_lb_hairpin()`, `chk_lb_hairpin_reply()` and `ct_snat_to_vip`, which use separate tables. In
//! OVN, ovn-controller fills these tables from `Load_Balancer` of ovn-sb(5).

use crate::actions::{Backend, Transport, backend};
use crate::logical_flow::LogicalFlow;
use flow::DatapathKey;
use pipeline::{Direction, TableId};
use std::net::IpAddr;

/// The properties of a load balancer that the flows for hairpin packets need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadBalancer {
    /// The name, shown in traces.
    pub name: String,
    /// The protocol of virtual addresses with a port.
    pub protocol: Transport,
    /// The virtual addresses, each with its backends.
    pub vips: Vec<(Backend, Vec<Backend>)>,
    /// The source of hairpin packets; for a family without an address here, the virtual address.
    pub hairpin_sources: Vec<IpAddr>,
    /// The first 32 bits of the row's UUID, shown in traces; 0 without a UUID.
    pub cookie: u64,
}

impl LoadBalancer {
    /// Parses the columns of a row of `Load_Balancer`. Skips values that cannot be parsed, as
    /// ovn-controller does.
    pub fn parse<'t>(
        name: &str,
        protocol: Option<&str>,
        vips: impl IntoIterator<Item = (&'t str, &'t str)>,
        hairpin_snat_ip: Option<&str>,
    ) -> Self {
        let vips = vips.into_iter().filter_map(|(vip, backends)| {
            Some((backend(vip)?, backends.split(',').filter_map(|it| backend(it.trim())).collect()))
        });
        let sources = hairpin_snat_ip.unwrap_or_default().split_whitespace();
        Self {
            name: name.to_owned(),
            protocol: protocol.and_then(Transport::from_name).unwrap_or(Transport::Tcp),
            vips: vips.collect(),
            hairpin_sources: sources.filter_map(|text| text.parse().ok()).collect(),
            cookie: 0,
        }
    }

    /// The flows for these datapaths, and their tables.
    pub(crate) fn flows(&self, datapaths: &[DatapathKey]) -> Vec<(TableId, LogicalFlow)> {
        let flow = |stage: &str, priority, condition, actions| LogicalFlow {
            datapaths: datapaths.to_vec(),
            direction: Direction::Egress,
            table: 0,
            priority,
            stage: stage.to_owned(),
            condition,
            actions,
            source: format!("load balancer {}", self.name),
            cookie: self.cookie,
        };
        let mut flows = Vec::new();
        for (vip, backends) in &self.vips {
            let vip_ip = vip.ip;
            let own = self.hairpin_sources.iter().find(|ip| ip.is_ipv4() == vip_ip.is_ipv4());
            let source = own.copied().unwrap_or(vip_ip);
            let (ip, register) = match vip_ip {
                IpAddr::V4(_) => ("ip4", "reg1"),
                IpAddr::V6(_) => ("ip6", "xxreg1"),
            };
            let protocol = self.protocol.name();
            let is_to_vip = format!("{register} == {vip_ip}");
            for Backend { ip: backend, port } in backends {
                if backend.is_ipv4() != vip_ip.is_ipv4() {
                    continue;
                }
                let mut hairpin = format!(
                    "{ip}.src == {backend} && {ip}.dst == {backend} && {is_to_vip} && \
                     ct_mark.natted == 1"
                );
                let mut reply = format!("{ip}.src == {backend} && {ip}.dst == {source}");
                if *port != 0 {
                    let vip_port = vip.port;
                    hairpin +=
                        &format!(" && {protocol}.dst == {port} && reg2[0..15] == {vip_port}");
                    reply += &format!(" && {protocol}.src == {port}");
                }
                let found = || "flags[7] = 1;".to_owned();
                flows.push((TableId::HAIRPIN, flow("lb_hairpin", 100, hairpin, found())));
                let reply = flow("lb_hairpin_reply", 100, reply, found());
                flows.push((TableId::HAIRPIN_REPLY, reply));
            }
            let (priority, condition) = match vip.port {
                0 => (90, format!("{ip} && {is_to_vip}")),
                port => {
                    (100, format!("{is_to_vip} && {ip} && {protocol} && reg2[0..15] == {port}"))
                }
            };
            // A load balancer with a configured source takes precedence over others with the same
            // virtual address.
            let priority = if own.is_some() { priority + 100 } else { priority };
            let snat = flow("lb_hairpin_snat", priority, condition, format!("ct_snat({source});"));
            flows.push((TableId::HAIRPIN_SNAT, snat));
        }
        flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loader;

    #[test]
    fn flows_tell_hairpin_packets_from_others() {
        let vips =
            [("10.9.9.9:80", "10.0.0.1:8080, 10.0.0.2:8080,fd00::1"), ("fd09::9", "fd00::2")];
        let balancer = LoadBalancer::parse("web", Some("udp"), vips, Some("10.9.9.1"));
        let found = "flags[7] = 1;";
        let expected = [
            (
                TableId::HAIRPIN,
                100,
                "ip4.src == 10.0.0.1 && ip4.dst == 10.0.0.1 && reg1 == 10.9.9.9 && \
                 ct_mark.natted == 1 && udp.dst == 8080 && reg2[0..15] == 80",
                found,
            ),
            (
                TableId::HAIRPIN_REPLY,
                100,
                "ip4.src == 10.0.0.1 && ip4.dst == 10.9.9.1 && udp.src == 8080",
                found,
            ),
            (
                TableId::HAIRPIN_SNAT,
                200,
                "reg1 == 10.9.9.9 && ip4 && udp && reg2[0..15] == 80",
                "ct_snat(10.9.9.1);",
            ),
            (
                TableId::HAIRPIN,
                100,
                "ip6.src == fd00::2 && ip6.dst == fd00::2 && xxreg1 == fd09::9 && \
                 ct_mark.natted == 1",
                found,
            ),
            (TableId::HAIRPIN_REPLY, 100, "ip6.src == fd00::2 && ip6.dst == fd09::9", found),
            (TableId::HAIRPIN_SNAT, 90, "ip6 && xxreg1 == fd09::9", "ct_snat(fd09::9);"),
        ];
        let flows = balancer.flows(&[DatapathKey(1)]);
        let flows: Vec<_> = flows
            .iter()
            .map(|(table, it)| (*table, it.priority, it.condition.as_str(), it.actions.as_str()))
            .collect();
        // Backend 10.0.0.2 has the same flows as 10.0.0.1, and fd00::1 is of another family.
        assert_eq!(flows.len(), expected.len() + 2);
        for flow in expected {
            assert!(flows.contains(&flow), "{flow:?} is not in {flows:#?}");
        }
        let mut loader = Loader::default();
        let added = loader.add_load_balancer(&balancer, &[DatapathKey(1)]);
        assert_eq!(added.map(|added| added.len()), Ok(flows.len()));
    }
}
