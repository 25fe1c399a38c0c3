//! Checks of the host: kernel, sysctls, capabilities.

use crate::facts::{HostFacts, KernelVersion, NicFacts};
use crate::finding::{Finding, Fix, Level};
use crate::fix::Action;

const HOST: &str = "host";
/// The first kernel that accounts BPF maps to memory cgroups, not to locked memory.
const MEMCG_MAPS: KernelVersion = KernelVersion::new(5, 11);
/// The oldest kernel: weft needs UDP_SEGMENT and UDP_GRO (5.0) and ethtool over netlink (5.6).
const OLDEST: KernelVersion = KernelVersion::new(5, 6);
/// The recommended backlog. A burst of super-packets over veth overflows the kernel's default of
/// 1000, but not this length.
const BACKLOG: u64 = 10_000;
/// This sysctl exists in the initial network namespace only.
const BACKLOG_KEY: &str = "net/core/netdev_max_backlog";
const MEMLOCK: u64 = 64 << 20;

/// All findings about a host with the uplinks `nics`.
pub fn findings(host: &HostFacts, nics: &[NicFacts]) -> Vec<Finding> {
    let mut findings = vec![kernel(host), privileges(host), programs(host)];
    findings.extend(rp_filter(host, nics));
    findings.extend(bridge_filter(host));
    findings.extend(backlog(host));
    findings.extend(memlock(host));
    findings.extend(congestion_control(host));
    findings.extend(path_mtu_discovery(host));
    findings.extend(conntrack(host));
    findings.extend(ipsec(host));
    findings.push(mitigations(host));
    findings
}

fn kernel(host: &HostFacts) -> Finding {
    let kernel = &host.kernel;
    let finding = Finding::pass(
        "kernel",
        HOST,
        format!("Linux {}", kernel.release),
        "weft needs UDP_SEGMENT, UDP_GRO and ethtool over netlink",
    );
    if kernel.version >= OLDEST {
        return finding;
    }
    finding.worse(Level::Fail, Fix::Command(format!("install Linux {OLDEST} or later")))
}

fn privileges(host: &HostFacts) -> Finding {
    let finding = Finding::pass(
        "privileges",
        HOST,
        "CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN",
        "weft run creates devices, opens packet sockets and enters namespaces",
    );
    if host.missing.is_empty() {
        return finding;
    }
    let seen = format!("missing: {}", host.missing.join(", "));
    Finding { seen, ..finding }.worse(Level::Warn, Fix::Command("sudo weft doctor".to_owned()))
}

/// Whether BPF programs can be loaded, and how they can be attached.
fn programs(host: &HostFacts) -> Finding {
    let kernel = &host.kernel;
    let mut has = Vec::new();
    let mut missing = Vec::new();
    let mut note = |name: &'static str, is_there: bool| {
        if is_there { has.push(name) } else { missing.push(name) }
    };
    note("BTF", kernel.btf);
    note("JIT", kernel.jit != Some(false));
    note("tcx", kernel.tcx);
    note("clsact", kernel.clsact);
    for &(name, is_there) in &kernel.kfuncs {
        note(name, is_there);
    }
    if let Some(is_there) = kernel.tun_tunnel_gso {
        note("TUN_F_UDP_TUNNEL_GSO", is_there);
    }
    let mut seen = has.join(", ");
    if !missing.is_empty() {
        seen = format!("{seen}; missing: {}", missing.join(", "));
    }
    let finding = Finding::pass(
        "bpf",
        HOST,
        seen,
        "the kernel datapath needs BTF, the JIT, and tcx or clsact",
    );
    if !kernel.btf {
        let fix =
            "boot a kernel with CONFIG_DEBUG_INFO_BTF=y; until then: weft run --datapath user";
        return finding.worse(Level::Warn, Fix::Command(fix.to_owned()));
    }
    if kernel.jit == Some(false) {
        let action = Action::Sysctl {
            key: "net/core/bpf_jit_enable".to_owned(),
            value: "1".to_owned(),
            was: "0".to_owned(),
        };
        return finding
            .with_reason("the kernel interprets BPF programs, which is several times slower")
            .worse(Level::Warn, Fix::safe(action));
    }
    finding
}

/// Checks the reverse-path filter. The kernel applies the larger of the values for `all` and for
/// the device.
fn rp_filter(host: &HostFacts, nics: &[NicFacts]) -> Vec<Finding> {
    let all = host.number("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    let finding = |nic: &NicFacts| {
        let key = format!("net/ipv4/conf/{}/rp_filter", nic.name);
        let own = host.number(&key)?;
        let finding = Finding::pass(
            "rp_filter",
            &nic.name,
            format!("rp_filter {}", all.max(own)),
            "1 (strict) drops packets that arrive on another device than replies leave by, such as \
             tunnel packets over several uplinks",
        );
        if all.max(own) != 1 {
            return Some(finding);
        }
        let action = Action::Sysctl { key, value: "2".to_owned(), was: own.to_string() };
        // Strict mode drops spoofed source addresses, so the administrator has to decide.
        Some(finding.worse(Level::Warn, Fix::needs_decision(vec![action])))
    };
    nics.iter().filter_map(finding).collect()
}

fn bridge_filter(host: &HostFacts) -> Option<Finding> {
    let keys = ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];
    let on: Vec<_> = keys.into_iter().filter(|key| host.number(key) == Some(1)).collect();
    let why = "the IP firewall and connection tracking see bridged frames, and may drop them";
    if host.bridges.is_empty() || on.is_empty() {
        let seen =
            if host.bridges.is_empty() { "no Linux bridge" } else { "bridged frames not filtered" };
        return Some(Finding::pass("bridge_filter", HOST, seen, why));
    }
    let seen = format!("{} is 1, bridges: {}", on.join(", "), host.bridges.join(", "));
    let actions = on.into_iter().map(|key| Action::Sysctl {
        key: key.to_owned(),
        value: "0".to_owned(),
        was: "1".to_owned(),
    });
    // Container platforms depend on it, so it is never applied automatically.
    let fix = Fix::needs_decision(actions.collect());
    Some(Finding::pass("bridge_filter", HOST, seen, why).worse(Level::Warn, fix))
}

fn backlog(host: &HostFacts) -> Option<Finding> {
    const KEY: &str = BACKLOG_KEY;
    // The sysctl is missing outside of the initial namespace.
    let most = host.number(KEY)?;
    let drops = host.backlog_drops.unwrap_or(0);
    let finding = Finding::pass(
        "backlog",
        HOST,
        format!("netdev_max_backlog {most}, {drops} dropped since boot"),
        "bursts of super-packets through veth, TAP or RPS overflow a short backlog queue",
    );
    if most >= BACKLOG {
        return Some(finding);
    }
    let (value, was) = (BACKLOG.to_string(), most.to_string());
    let action = Action::Sysctl { key: KEY.to_owned(), value, was };
    Some(finding.worse(Level::Warn, Fix::safe(action)))
}

fn memlock(host: &HostFacts) -> Option<Finding> {
    let limit = host.memlock?;
    let shown = match limit.soft {
        u64::MAX => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes >> 10),
    };
    let finding = Finding::pass(
        "memlock",
        HOST,
        format!("limit {shown}"),
        "kernels before 5.11 account BPF maps as locked memory",
    );
    if host.kernel.version >= MEMCG_MAPS || limit.soft >= MEMLOCK {
        return Some(finding);
    }
    let fix = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service's unit";
    Some(finding.worse(Level::Warn, Fix::Command(fix.to_owned())))
}

fn congestion_control(host: &HostFacts) -> Option<Finding> {
    const KEY: &str = "net/ipv4/tcp_congestion_control";
    let control = host.sysctls.get(KEY)?;
    let finding = Finding::pass(
        "congestion_control",
        HOST,
        control.clone(),
        "BBR paces every stream by timers, which slows traffic between guests of one host and \
         makes results incomparable",
    );
    if !control.starts_with("bbr") {
        return Some(finding);
    }
    // Other namespaces can use the allowed algorithms, which always include Reno.
    let allowed = host.sysctls.get("net/ipv4/tcp_allowed_congestion_control");
    let is_first = host.sysctls.contains_key(BACKLOG_KEY);
    let has_cubic = allowed.is_some_and(|names| names.split(' ').any(|name| name == "cubic"));
    let value = if is_first || has_cubic { "cubic" } else { "reno" }.to_owned();
    let was = control.clone();
    let action = Action::Sysctl { key: KEY.to_owned(), value, was };
    // It affects all programs of the host.
    Some(finding.worse(Level::Warn, Fix::needs_decision(vec![action])))
}

fn path_mtu_discovery(host: &HostFacts) -> Option<Finding> {
    const KEY: &str = "net/ipv4/ip_no_pmtu_disc";
    let off = host.number(KEY)?;
    let finding = Finding::pass(
        "path_mtu_discovery",
        HOST,
        format!("ip_no_pmtu_disc {off}"),
        "other values than 0 ignore ICMP \"fragmentation needed\", so that long packets are lost",
    );
    // The values 1 to 3 ignore such messages for some or all sockets.
    if off == 0 {
        return Some(finding);
    }
    let (value, was) = ("0".to_owned(), off.to_string());
    let action = Action::Sysctl { key: KEY.to_owned(), value, was };
    Some(finding.worse(Level::Warn, Fix::safe(action)))
}

fn conntrack(host: &HostFacts) -> Option<Finding> {
    const KEY: &str = "net/netfilter/nf_conntrack_max";
    let most = host.number(KEY)?;
    let count = host.number("net/netfilter/nf_conntrack_count").unwrap_or(0);
    let finding = Finding::pass(
        "conntrack",
        HOST,
        format!("{count} of {most} connections tracked"),
        "when the table is full the kernel drops the packets of new connections, tunnels included",
    );
    if most == 0 || count < most / 5 * 4 {
        return Some(finding);
    }
    let (value, was) = ((most * 4).to_string(), most.to_string());
    let action = Action::Sysctl { key: KEY.to_owned(), value, was };
    let level = if count >= most { Level::Fail } else { Level::Warn };
    Some(finding.worse(level, Fix::safe(action)))
}

fn ipsec(host: &HostFacts) -> Option<Finding> {
    let policies = host.ipsec_policies?;
    let finding = Finding::pass(
        "ipsec",
        HOST,
        format!("IPsec policies: {policies}"),
        "the kernel datapath sends and receives past IPsec policies: in clear text",
    );
    if policies == 0 {
        return Some(finding);
    }
    let fix = "if they are to encrypt tunnels: weft run --datapath user, with VXLAN or Geneve";
    Some(finding.worse(Level::Warn, Fix::Command(fix.to_owned())))
}

/// Mitigations that flush buffers or stop speculation at every kernel entry or return.
const COSTLY: [(&str, &str); 6] = [
    ("meltdown", "PTI"),
    ("retbleed", "IBRS"),
    ("retbleed", "untrained return thunk"),
    ("retbleed", "IBPB"),
    ("spec_rstack_overflow", "IBPB"),
    ("spec_rstack_overflow", "Safe RET"),
];

fn mitigations(host: &HostFacts) -> Finding {
    let costly: Vec<_> = host
        .mitigations
        .iter()
        .filter(|(fault, how)| {
            let how = how.to_lowercase();
            how.starts_with("mitigation")
                && COSTLY.iter().any(|(known, word)| {
                    known == fault
                        && how.split([':', ';', ',']).any(|part| part.trim() == word.to_lowercase())
                })
        })
        .map(|(fault, how)| format!("{fault}: {how}"))
        .collect();
    let why = "every packet takes system calls and interrupts, which cost up to twice as much";
    if costly.is_empty() {
        let seen = "none of the costly ones is active";
        return Finding::pass("mitigations", HOST, seen, why);
    }
    let names: Vec<_> = costly.iter().filter_map(|text| text.split(':').next()).collect();
    let fix = format!(
        "none needed unless every guest is trusted; then boot with mitigations=off (or {})",
        names.iter().map(|name| off_switch(name)).collect::<Vec<_>>().join(" ")
    );
    Finding::pass("mitigations", HOST, costly.join("; "), why).worse(Level::Warn, Fix::Command(fix))
}

/// The kernel parameter that switches a mitigation off
/// (Documentation/admin-guide/kernel-parameters).
fn off_switch(fault: &str) -> &'static str {
    match fault {
        "meltdown" => "pti=off",
        "retbleed" => "retbleed=off",
        _ => "spec_rstack_overflow=off",
    }
}
