//! Prints actions like OVN does; the text parses to the same actions.

use super::ast::{
    Action, Backend, CtLb, IpVersion, LbAffinity, Log, NatTarget, ObservationPoint, Sample, Stage,
};
use super::options::EVENT;
use crate::token::{Constant, Format, Hex, Quoted};
use pipeline::{Direction, TableId};
use std::fmt;
use std::net::IpAddr;

/// Actions in a stage. The stage decides whether `next` is printed with a table.
pub(super) struct PrintedActions<'a> {
    pub stage: Stage,
    pub actions: &'a [Action],
}

impl fmt::Display for PrintedActions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut actions = self.actions.iter();
        let Some(first) = actions.next() else { return f.write_str("drop;") };
        statement(f, self.stage, first)?;
        for action in actions {
            f.write_str(" ")?;
            statement(f, self.stage, action)?;
        }
        Ok(())
    }
}

fn statement(f: &mut fmt::Formatter<'_>, stage: Stage, action: &Action) -> fmt::Result {
    match action {
        Action::Next(table) => next(f, stage, *table),
        Action::Nested(nest, actions) => {
            write!(f, "{} {{ {} }};", nest.name(), PrintedActions { stage, actions })
        }
        Action::CtCommit(actions) if actions.is_empty() => f.write_str("ct_commit;"),
        Action::CtCommit(actions) => {
            write!(f, "ct_commit {{ {} }};", PrintedActions { stage, actions })
        }
        _ => write!(f, "{};", SimpleAction(action)),
    }
}

fn next(f: &mut fmt::Formatter<'_>, stage: Stage, table: TableId) -> fmt::Result {
    let (direction, number) = table.in_pipeline();
    if direction != stage.direction() {
        let pipeline = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        write!(f, "next(pipeline={pipeline}, table={number});")
    } else if number == stage.table() + 1 {
        f.write_str("next;")
    } else {
        write!(f, "next({number});")
    }
}

/// An action without nested actions, printed without its semicolon.
struct SimpleAction<'a>(&'a Action);

impl fmt::Display for SimpleAction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // `statement` prints these.
            Action::Next(_) | Action::Nested(..) | Action::CtCommit(_) => Ok(()),
            Action::Output => f.write_str("output"),
            Action::Load { to, value } => write!(f, "{to} = {value}"),
            Action::LoadName { to, name } => write!(f, "{to} = {}", Quoted(name)),
            Action::Move { to, from } => write!(f, "{to} = {from}"),
            Action::Exchange(a, b) => write!(f, "{a} <-> {b}"),
            Action::Push(field) => write!(f, "push({field})"),
            Action::Pop(field) => write!(f, "pop({field})"),
            Action::DecTtl => f.write_str("ip.ttl--"),
            Action::LoadFragMtu { family: IpVersion::V4, mtu } => {
                write!(f, "icmp4.frag_mtu = {mtu}")
            }
            Action::LoadFragMtu { family: IpVersion::V6, mtu } => {
                write!(f, "icmp6.frag_mtu = {mtu}")
            }
            Action::GetMacBinding { family, port, ip } => {
                write!(f, "get_{}({port}, {ip})", protocol(*family))
            }
            Action::PutMacBinding { family, port, ip, mac } => {
                write!(f, "put_{}({port}, {ip}, {mac})", protocol(*family))
            }
            Action::LookupMacBinding { to, family, port, ip, mac: Some(mac) } => {
                write!(f, "{to} = lookup_{}({port}, {ip}, {mac})", protocol(*family))
            }
            Action::LookupMacBinding { to, family, port, ip, mac: None } => {
                write!(f, "{to} = lookup_{}_ip({port}, {ip})", protocol(*family))
            }
            Action::GetFdb { to, mac } => write!(f, "{to} = get_fdb({mac})"),
            Action::PutFdb { port, mac } => write!(f, "put_fdb({port}, {mac})"),
            Action::LookupFdb { to, port, mac } => write!(f, "{to} = lookup_fdb({port}, {mac})"),
            Action::Check { to, check } => write!(f, "{to} = {}()", check.name()),
            Action::CheckLength { to, bytes } => write!(f, "{to} = check_pkt_larger({bytes})"),
            Action::Select { to, choices } => {
                write!(f, "{to} = select(")?;
                separated(f, ", ", choices, |f, (value, weight)| write!(f, "{value}={weight}"))?;
                f.write_str(")")
            }
            Action::ForwardGroup { liveness, ports } => forward_group(f, *liveness, ports),
            Action::Log(log) => log.fmt(f),
            Action::SetMeter { rate_kbps, burst_kb: 0 } => write!(f, "set_meter({rate_kbps})"),
            Action::SetMeter { rate_kbps, burst_kb } => {
                write!(f, "set_meter({rate_kbps}, {burst_kb})")
            }
            Action::SetQueue(queue) => write!(f, "set_queue({queue})"),
            Action::CtClear => f.write_str("ct_clear"),
            Action::CtNext(None) => f.write_str("ct_next"),
            Action::CtNext(Some(zone)) => write!(f, "ct_next({})", zone.name()),
            Action::CtCommitV1 { mark, label } => ct_commit_v1(f, *mark, *label),
            Action::CtNat { nat, to: None } => f.write_str(nat.name()),
            Action::CtNat { nat, to: Some(target) } => write!(f, "{}({target})", nat.name()),
            Action::CtCommitNat(None) => f.write_str("ct_commit_nat"),
            Action::CtCommitNat(Some(zone)) => write!(f, "ct_commit_nat({})", zone.name()),
            Action::CtCommitToZone(zone) => write!(f, "ct_commit_to_zone({})", zone.name()),
            Action::CtRead { to, value } => write!(f, "{to} = {}()", value.name()),
            Action::MacCacheUse => f.write_str("mac_cache_use"),
            Action::CtSnatToVip => f.write_str("ct_snat_to_vip"),
            Action::CtLb(lb) => lb.fmt(f),
            Action::CommitEcmpNh { ipv6, protocol } => {
                write!(f, "commit_ecmp_nh(ipv6 = {ipv6}, proto = {})", protocol.name())
            }
            Action::CommitLbAffinity(affinity) => affinity.fmt(f),
            Action::PutOptions { to, protocol, options } => {
                write!(f, "{to} = {}(", protocol.name())?;
                separated(f, ", ", options, |f, option| option.fmt(f))?;
                f.write_str(")")
            }
            Action::TriggerEvent(options) => {
                write!(f, "trigger_event(event = {}", Quoted(EVENT))?;
                options.iter().try_for_each(|option| write!(f, ", {option}"))?;
                f.write_str(")")
            }
            Action::BindVport { name, parent } => {
                write!(f, "bind_vport({}, {parent})", Quoted(name))
            }
            Action::HandleSvcCheck(port) => write!(f, "handle_svc_check({port})"),
            Action::HandleDhcp6Reply => f.write_str("handle_dhcpv6_reply"),
            Action::HandleBfdMsg => f.write_str("handle_bfd_msg()"),
            Action::Igmp => f.write_str("igmp"),
            Action::Sample(sample) => sample.fmt(f),
        }
    }
}

fn forward_group(f: &mut fmt::Formatter<'_>, liveness: bool, ports: &[Box<str>]) -> fmt::Result {
    f.write_str("fwd_group(")?;
    if liveness {
        f.write_str("liveness=\"true\", ")?;
    }
    f.write_str("childports=")?;
    separated(f, ", ", ports, |f, port| write!(f, "{}", Quoted(port)))?;
    f.write_str(")")
}

const fn protocol(family: IpVersion) -> &'static str {
    match family {
        IpVersion::V4 => "arp",
        IpVersion::V6 => "nd",
    }
}

fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    separator: &str,
    items: &[T],
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        if at != 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    Ok(())
}

fn ct_commit_v1(
    f: &mut fmt::Formatter<'_>,
    mark: Option<(u32, u32)>,
    label: Option<(u128, u128)>,
) -> fmt::Result {
    f.write_str("ct_commit(")?;
    if let Some((value, mask)) = mark {
        write!(f, "ct_mark={}", Hex(value.into()))?;
        if mask != u32::MAX {
            write!(f, "/{}", Hex(mask.into()))?;
        }
    }
    if mark.is_some() && label.is_some() {
        f.write_str(", ")?;
    }
    if let Some((value, mask)) = label {
        write!(f, "ct_label={}", Hex(value))?;
        if mask != u128::MAX {
            write!(f, "/{}", Hex(mask))?;
        }
    }
    f.write_str(")")
}

/// The address as a constant of the language.
fn address(ip: IpAddr) -> Constant {
    match ip {
        IpAddr::V4(ip) => Constant::new(ip.to_bits().into(), Format::Ipv4),
        IpAddr::V6(ip) => Constant::new(ip.to_bits(), Format::Ipv6),
    }
}

impl fmt::Display for NatTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        address(self.ip).fmt(f)?;
        match self.ports {
            None => Ok(()),
            Some((first, None)) => write!(f, ",{first}"),
            Some((first, Some(last))) => write!(f, ",{first}-{last}"),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = address(self.ip);
        match (self.port, self.family()) {
            (0, _) => ip.fmt(f),
            (port, IpVersion::V4) => write!(f, "{ip}:{port}"),
            (port, IpVersion::V6) => write!(f, "[{ip}]:{port}"),
        }
    }
}

impl fmt::Display for CtLb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.mark { "ct_lb_mark" } else { "ct_lb" })?;
        if self.backends.is_empty() {
            return Ok(());
        }
        f.write_str("(backends=")?;
        separated(f, ",", &self.backends, |f, backend| backend.fmt(f))?;
        if let Some(fields) = &self.hash_fields {
            write!(f, "; hash_fields={}", Quoted(fields))?;
        }
        if let Some(flag) = self.flag {
            write!(f, "; {}", flag.name())?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for LbAffinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("commit_lb_aff(")?;
        for (name, backend) in [("vip", self.vip), ("backend", self.backend)] {
            // In quotes, an IPv6 address has brackets even without a port.
            match (backend.family(), backend.port) {
                (IpVersion::V6, 0) => write!(f, "{name} = \"[{backend}]\", ")?,
                _ => write!(f, "{name} = \"{backend}\", ")?,
            }
        }
        if let Some(protocol) = self.protocol {
            write!(f, "proto = {}, ", protocol.name())?;
        }
        write!(f, "timeout = {})", self.timeout_s)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("log(")?;
        if let Some(name) = &self.name {
            write!(f, "name={}, ", Quoted(name))?;
        }
        write!(f, "verdict={}, severity={}", self.verdict.name(), self.severity.name())?;
        if let Some(meter) = &self.meter {
            write!(f, ", meter={}", Quoted(meter))?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { probability, collector_set, domain, point } = self;
        write!(f, "sample(probability={probability},collector_set={collector_set},")?;
        write!(f, "obs_domain={domain},obs_point=")?;
        match point {
            ObservationPoint::Number(number) => write!(f, "{number})"),
            ObservationPoint::Cookie => f.write_str("$cookie)"),
        }
    }
}
