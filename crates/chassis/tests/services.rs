//! Compares the flows for load balancers and address translation of a network file with those that
//! ovn-northd creates for the same network.

use lflow::actions::{self, Stage};
use lflow::expr;
use network::{Network, logical_flows};
use pipeline::{Direction, TableId};
use std::collections::BTreeSet;
use testkit::ovn::Ovn;
use testkit::require_program;

const EXAMPLE: &str = include_str!("../../../examples/services.toml");

/// The same network for ovn-nbctl.
const COMMANDS: &str = r#"
    ls-add blue
    lsp-add blue client
    lsp-set-addresses client "02:00:00:00:01:0a 10.0.1.10"
    lsp-add blue web1
    lsp-set-addresses web1 "02:00:00:00:01:0b 10.0.1.11"
    lsp-add blue web2
    lsp-set-addresses web2 "02:00:00:00:01:0c 10.0.1.12"
    ls-add public
    lsp-add public outside
    lsp-set-addresses outside "02:00:00:00:02:0a 203.0.113.10"
    lr-add core
    lrp-add core core-blue 02:00:00:00:01:01 10.0.1.1/24
    lsp-add blue blue/core-blue
    lsp-set-type blue/core-blue router
    lsp-set-addresses blue/core-blue router
    lsp-set-options blue/core-blue router-port=core-blue
    lr-add edge
    set Logical_Router edge options:chassis=h2
    lrp-add edge edge-blue 02:00:00:00:01:02 10.0.1.2/24
    lsp-add blue blue/edge-blue
    lsp-set-type blue/edge-blue router
    lsp-set-addresses blue/edge-blue router
    lsp-set-options blue/edge-blue router-port=edge-blue
    lrp-add edge edge-public 02:00:00:00:02:02 203.0.113.2/24
    lsp-add public public/edge-public
    lsp-set-type public/edge-public router
    lsp-set-addresses public/edge-public router
    lsp-set-options public/edge-public router-port=edge-public
    pg-add servers web1 web2
    acl-add servers to-lport 1000 'outport == @servers && tcp.dst == 8080' allow-related
    acl-add servers to-lport 900 'outport == @servers && ip' drop
    lb-add web 10.9.0.1:80 10.0.1.11:8080,10.0.1.12:8080 tcp
    ls-lb-add blue web
    lr-nat-add edge snat 203.0.113.2 10.0.1.0/24
    lr-nat-add edge dnat_and_snat 203.0.113.20 10.0.1.12
"#;

/// The stages of load balancers and address translation.
const STAGES: [&str; 16] = [
    "ls_in_pre_lb",
    "ls_in_pre_stateful",
    "ls_in_lb",
    "ls_in_pre_hairpin",
    "ls_in_nat_hairpin",
    "ls_in_hairpin",
    "ls_out_pre_lb",
    "ls_out_pre_stateful",
    "lr_in_unsnat",
    "lr_in_defrag",
    "lr_in_lb_aff_check",
    "lr_in_dnat",
    "lr_in_lb_aff_learn",
    "lr_out_undnat",
    "lr_out_post_undnat",
    "lr_out_snat",
];

/// The flows of these stages in a listing of ovn-sbctl, in canonical form.
fn flows(listing: &str) -> BTreeSet<String> {
    listing.lines().filter_map(flow).collect()
}

/// `STAGE PRIORITY: MATCH => ACTIONS`
fn flow(line: &str) -> Option<String> {
    let (head, rest) = line.split_once(", match=(")?;
    let (condition, actions) = rest.split_once("), action=(")?;
    let actions = actions.strip_suffix(')')?;
    let (stage, priority) = head.split_once("priority=")?;
    let stage = stage.split_once('(')?.1.split_once(')')?.0.trim();
    // Health checks, labels of connections, and the default of a stage, where weft may skip some.
    let is_other = condition.contains("svc_monitor_mac")
        || condition.contains("reg0[13]")
        || priority.trim() == "0";
    if !STAGES.contains(&stage) || is_other {
        return None;
    }
    let condition = expr::parse(condition).unwrap_or_else(|error| panic!("{condition}: {error}"));
    let at = Stage::of(TableId::logical(Direction::Ingress, 9).expect("a table"));
    let actions = actions::parse(actions, at).unwrap_or_else(|error| panic!("{actions}: {error}"));
    Some(format!("{stage} {}: {condition} => {actions}", priority.trim()))
}

fn configure(ovn: &Ovn, commands: &str) {
    let commands: Vec<&str> = commands.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    ovn.configure(&commands);
}

#[test]
fn services_become_the_flows_that_ovn_northd_makes() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("services");
    configure(&ovn, COMMANDS);
    let network = Network::parse(EXAMPLE, "services.toml").unwrap_or_else(|e| panic!("{e}"));
    let own = logical_flows(&network).to_string();
    assert_same(&ovn, &own, &[("blue", 16), ("edge", 8)]);
}

/// Compares the flows of these datapaths. ovn-northd must create at least the given number for
/// each.
fn assert_same(ovn: &Ovn, own: &str, datapaths: &[(&str, usize)]) {
    for &(name, least) in datapaths {
        let header = format!("Datapath: {name:?} ");
        let sections = own.split("Datapath: ").filter(|it| it.starts_with(&format!("{name:?} ")));
        let own = flows(&sections.collect::<String>());
        let theirs = flows(&ovn.sbctl(&format!("lflow-list {name}")));
        assert!(theirs.len() >= least, "{header} {theirs:#?}");
        let missing: Vec<_> = theirs.difference(&own).collect();
        let more: Vec<_> = own.difference(&theirs).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "{header}\nmissing {missing:#?}\nmore {more:#?}"
        );
    }
}

/// Load balancers of the gateway router, in addition to its NAT: over IPv4 and IPv6, TCP and UDP,
/// with and without affinity, with virtual addresses in a network of the router, elsewhere, and
/// equal to external addresses of NAT.
const ROUTER_BALANCERS: &str = r#"
    lb-add web4 203.0.113.30:80 10.0.1.11:8080,10.0.1.12:8080 tcp
    lb-add web6 [fd02::30]:80 [fd01::b]:8080,[fd01::c]:8080 tcp
    lb-add dns4 203.0.113.2:53 10.0.1.11:53,10.0.1.12:53 udp
    set Load_Balancer dns4 options:affinity_timeout=60
    lb-add dns6 [fd09::9]:53 [fd01::b]:53,[fd01::c]:53 udp
    set Load_Balancer dns6 options:affinity_timeout=61
    lb-add far 203.0.113.20:443 10.0.1.11:8443 sctp
    lr-lb-add edge web4
    lr-lb-add edge web6
    lr-lb-add edge dns4
    lr-lb-add edge dns6
    lr-lb-add edge far
    lr-nat-add edge snat fd02::2 fd01::/64
"#;

/// The same network as a file.
fn with_router_balancers() -> String {
    let mut text = EXAMPLE.to_owned();
    for (v4, v6) in [("10.0.1.2/24", "fd01::2/64"), ("203.0.113.2/24", "fd02::2/64")] {
        text = text.replace(&format!("[\"{v4}\"]"), &format!("[\"{v4}\", \"{v6}\"]"));
    }
    for (name, protocol, vip, backends, affinity) in [
        ("web4", "tcp", "203.0.113.30:80", ["10.0.1.11:8080", "10.0.1.12:8080"], ""),
        ("web6", "tcp", "[fd02::30]:80", ["[fd01::b]:8080", "[fd01::c]:8080"], ""),
        ("dns4", "udp", "203.0.113.2:53", ["10.0.1.11:53", "10.0.1.12:53"], "affinity = 60"),
        ("dns6", "udp", "[fd09::9]:53", ["[fd01::b]:53", "[fd01::c]:53"], "affinity = 61"),
        ("far", "sctp", "203.0.113.20:443", ["10.0.1.11:8443", ""], ""),
    ] {
        let backends: Vec<&str> = backends.into_iter().filter(|it| !it.is_empty()).collect();
        text += &format!(
            "[[load_balancer]]\nname = \"{name}\"\nrouters = [\"edge\"]\n\
             protocol = \"{protocol}\"\nvip = \"{vip}\"\nbackends = {backends:?}\n{affinity}\n"
        );
    }
    text + "[[nat]]\nrouter = \"edge\"\ntype = \"snat\"\nexternal = \"fd02::2\"\n\
            internal = \"fd01::/64\"\n"
}

/// Removes the virtual address from weft's affinity matches in the stage `dnat`, because ovn-northd
/// leaves it out there.
fn without_vip(listing: &str) -> String {
    let is_to_vip = [
        ("ip4.dst == 203.0.113.2 && udp.dst == 53", "ip4"),
        ("ip6.dst == fd09::9 && udp.dst == 53", "ip6"),
    ];
    let line = |line: &str| match line.contains("reg9[6] == 1") {
        true => is_to_vip.iter().fold(line.to_owned(), |it, (ours, ip)| it.replace(ours, ip)),
        false => line.to_owned(),
    };
    listing.lines().map(|it| line(it) + "\n").collect()
}

#[test]
fn load_balancers_of_a_router_become_the_flows_that_ovn_northd_makes() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("balancing");
    let commands = COMMANDS.replace("10.0.1.2/24", "10.0.1.2/24 fd01::2/64");
    configure(&ovn, &commands.replace("203.0.113.2/24", "203.0.113.2/24 fd02::2/64"));
    configure(&ovn, ROUTER_BALANCERS);
    let network = Network::parse(&with_router_balancers(), "balancing.toml");
    let network = network.unwrap_or_else(|errors| panic!("{errors}"));
    let own = logical_flows(&network).to_string();
    assert_same(&ovn, &without_vip(&own), &[("blue", 16), ("edge", 39)]);
    assert_same_answers(&ovn, &own);
}

/// Tests forced SNAT: to the addresses of the egress port, to the router's own addresses, and to
/// others.
#[test]
fn forced_sources_of_a_router_become_the_flows_that_ovn_northd_makes() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("forced");
    let commands = COMMANDS.replace("10.0.1.2/24", "10.0.1.2/24 fd01::2/64");
    configure(&ovn, &commands.replace("203.0.113.2/24", "203.0.113.2/24 fd02::2/64"));
    configure(&ovn, ROUTER_BALANCERS);
    let text = with_router_balancers();
    for (keys, options, flows) in [
        ("lb_force_snat_ip = \"router_ip\"", &["lb_force_snat_ip=router_ip"][..], 47),
        (
            "lb_force_snat_ip = [\"10.0.1.2\", \"fd01::2\"]",
            &["lb_force_snat_ip=\"10.0.1.2 fd01::2\""],
            43,
        ),
        (
            "lb_force_snat_ip = [\"fd09::2\"]\ndnat_force_snat_ip = [\"203.0.113.2\"]",
            &["lb_force_snat_ip=\"fd09::2\"", "dnat_force_snat_ip=203.0.113.2"],
            43,
        ),
        (
            "dnat_force_snat_ip = [\"10.0.1.2\", \"fd01::2\"]",
            &["dnat_force_snat_ip=\"10.0.1.2 fd01::2\""],
            43,
        ),
    ] {
        let others = "remove Logical_Router edge options lb_force_snat_ip dnat_force_snat_ip";
        let set = options.iter().map(|it| format!(" -- set Logical_Router edge 'options:{it}'"));
        ovn.nbctl(&format!("--wait=sb {others}{}", set.collect::<String>()));
        let text =
            text.replace("host = \"h2\"\n\n  [[log", &format!("host = \"h2\"\n{keys}\n\n  [[log"));
        assert!(text.contains(keys));
        let network = Network::parse(&text, "forced.toml").unwrap_or_else(|it| panic!("{it}"));
        let own = logical_flows(&network).to_string();
        assert_same(&ovn, &without_vip(&own), &[("blue", 16), ("edge", flows)]);
        // Packets to the router's own addresses are not forwarded.
        for address in network.logical_routers()[1].ports.iter().flat_map(|port| &port.addresses) {
            let address = address.addr().to_string();
            let is_end = |end: char| !(end.is_ascii_hexdigit() || end == '.' || end == ':');
            let is_dropped = |line: &str| {
                line.contains(".dst == ")
                    && line.contains("drop;")
                    && line.split(is_end).any(|word| word == address)
            };
            assert!(own.lines().any(is_dropped), "{keys}: {address}\n{own}");
        }
    }
}

/// Checks that the router and its switches answer for the same virtual addresses as those of
/// ovn-northd.
fn assert_same_answers(ovn: &Ovn, own: &str) {
    let sets = ovn.sbctl("--bare --columns=addresses find Address_Set name=_rtr_lb_3_ip4");
    let theirs = ovn.sbctl("lflow-list edge");
    for (vip, set) in [("203.0.113.30", "_ip4"), ("fd02::30", "_ip6")] {
        let is_answer = |line: &&str, target: &str| {
            line.contains("inport == \"edge-public\"") && line.contains(target)
        };
        let of_northd = theirs
            .lines()
            .find(|line| is_answer(line, &format!("{set})")) && line.contains("$_rtr_lb_"));
        let of_northd = of_northd.unwrap_or_else(|| panic!("{vip}: {sets}\n{theirs}"));
        let ours = own.lines().find(|line| line.contains("lr_in_ip_input") && is_answer(line, vip));
        let ours = ours.unwrap_or_else(|| panic!("{vip}: {own}"));
        let actions = |line: &str| -> String {
            let actions = line.split_once("action=").map_or("", |(_, actions)| actions);
            actions.replace(" /* ARP reply */", "")
        };
        assert_eq!(actions(ours), actions(of_northd), "{vip}");
        // The outside switch sends requests to the router; the inside switch does not have this
        // network.
        assert!(ovn.sbctl("lflow-list public").contains(&format!("== {vip})")), "{vip}");
        let lookups = own
            .lines()
            .filter(|line| line.contains("ls_in_l2_lkup") && line.contains(&format!("== {vip})")));
        assert_eq!(lookups.count(), 1, "{vip}");
    }
    // An address outside of the router's networks is reached by a route only.
    assert!(!own.contains("nd.target == fd09::9"));
    assert!(!theirs.contains("nd.target == fd09::9"));
}
