//! Tests the state that load balancers and routers of an OVN keep for their clients: source-address
//! affinity, and the next hop of each connection.

use super::{Hosts, address_routed, balanced, gateway, lab_of, routed_ip, switch};
use crate::commands::call::{weft, weft_json};
use crate::common::daemon::WEFT;
use crate::common::{GUEST_DEVICE, Guest, PATIENCE, traffic};
use crate::peers::program::run;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;
use traffic::EchoServer;

const STREAM: usize = 100_000;
const SERVER_PORT: u16 = 8080;

/// Opens connections of a client one after another. Returns the backends that served them.
pub fn backends_of(client: &Guest, vip: SocketAddr, connections: usize) -> BTreeSet<String> {
    // The first stream is long. Short ones suffice to find the backend of a connection.
    let len = |at| if at == 0 { STREAM } else { 100 };
    (0..connections).map(|at| traffic::tcp_echo(client, vip, len(at)).server).collect()
}

/// Waits until no connection of a client is refused, which means that its load balancer has no
/// failed backend any more.
pub fn wait_accepted(client: &Guest, vip: SocketAddr) {
    let connect = || TcpStream::connect_timeout(&vip, Duration::from_secs(1));
    wait_until(PATIENCE, &format!("{vip} accepts all connections"), || {
        (0..16).all(|_| client.netns.run(connect).is_ok())
    });
}

#[test]
fn client_keeps_its_backend_when_the_load_balancer_has_affinity() {
    require_ovn!();
    let lab = lab_of(2, 1);
    let ovn = Ovn::start("affinity");
    let [client, near, far] = &lab.guests[..] else { panic!("three guests") };
    balanced::configure(&ovn, &lab, &[near, far]);
    ovn.nbctl("set Load_Balancer web options:affinity_timeout=3600");
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    for family in [4, 6] {
        let _servers = [near, far].map(|guest| EchoServer::start(guest, family, SERVER_PORT));
        let vip = balanced::vip(family);
        let served = backends_of(client, vip, 12);
        assert_eq!(served.len(), 1, "IPv{family}: {served:?}");
        // The backend that serves the client is removed, so the other one must serve it.
        let [kept, lost] = match served.contains(&near.name) {
            true => [far, near],
            false => [near, far],
        };
        let rows = weft_json(&lab.control(0), &["fdb"]);
        let of_client = rows["affinities"].as_array().expect("an array").iter().find(|row| {
            (&row["client"], &row["vip"])
                == (&client.ip(family).to_string().into(), &vip.to_string().into())
        });
        let backend = SocketAddr::new(lost.ip(family), SERVER_PORT).to_string();
        assert_eq!(of_client.map(|row| &row["backend"]), Some(&backend.into()), "{rows}");
        let only = SocketAddr::new(kept.ip(family), SERVER_PORT);
        ovn.nbctl(&format!("--wait=hv --may-exist lb-add web {vip} {only} tcp"));
        assert_eq!(backends_of(client, vip, 4), BTreeSet::from([kept.name.clone()]));
    }
    hosts.stop(&ovn);
}

/// The address of the clients behind both next hops.
const BEHIND: &str = "10.5.0.1";

/// Clients behind both next hops have the same address. So a reply that takes the wrong next hop
/// never arrives at its client.
#[test]
fn replies_take_the_next_hop_of_their_connection() {
    require_ovn!();
    let lab = lab_of(2, 1);
    let ovn = Ovn::start("symmetric");
    let [server, near, far] = &lab.guests[..] else { panic!("three guests") };
    ovn.configure(&switch("blue", &[near, far]));
    let (inside, outside) = (gateway(1), "192.168.7.254");
    let mut commands = vec![
        "ls-add in".to_owned(),
        format!("lsp-add in {}", server.name),
        format!("lsp-set-addresses {} '{} {}'", server.name, server.mac, routed_ip(1)),
        "lr-add gr -- set Logical_Router gr options:chassis=h2".to_owned(),
        format!("lrp-add gr gr-blue 02:00:00:00:ff:01 {outside}/24"),
        format!("lrp-add gr gr-in 02:00:00:00:ff:02 {inside}/24"),
    ];
    for switch in ["blue", "in"] {
        commands.push(format!(
            "lsp-add {switch} {switch}-gr -- lsp-set-type {switch}-gr router -- \
             lsp-set-addresses {switch}-gr router -- \
             lsp-set-options {switch}-gr router-port=gr-{switch}"
        ));
    }
    commands.extend(
        [near, far]
            .map(|hop| format!("--ecmp-symmetric-reply lr-route-add gr 10.5.0.0/16 {}", hop.ip4)),
    );
    ovn.configure(&commands);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    address_routed(server, 1);
    let ip = |guest: &Guest, arguments: &str| {
        let mut command = guest.netns.program("ip");
        command.args(arguments.split_whitespace());
        run(command, b"");
    };
    ip(server, &format!("route add 10.5.0.0/16 via {inside}"));
    for hop in [near, far] {
        ip(hop, &format!("address add {BEHIND}/32 dev {GUEST_DEVICE}"));
        ip(hop, &format!("route add 172.16.1.0/24 via {outside} src {BEHIND}"));
    }
    let to = SocketAddr::new(routed_ip(1).into(), SERVER_PORT);
    let _server = EchoServer::start_at(server, to);
    for hop in [near, far] {
        for _ in 0..8 {
            let answer = traffic::tcp_echo(hop, to, STREAM);
            assert_eq!(answer.client.to_string(), BEHIND);
        }
    }
    let rows = weft_json(&lab.control(1), &["fdb"]);
    let hops = rows["next_hops"].as_array().expect("an array");
    let macs: BTreeSet<&str> = hops.iter().filter_map(|row| row["mac"].as_str()).collect();
    let expected = [near, far].map(|hop| hop.mac.to_string());
    assert_eq!(macs, expected.iter().map(String::as_str).collect(), "{rows}");
    let (_, shown, _) = weft(&lab.control(1), &["fdb"]);
    assert!(shown.contains("NEXT HOP") && shown.contains(&to.to_string()), "{shown}");
    hosts.stop(&ovn);
}

/// The logical stages whose load balancer flows depend on affinity.
const STAGES: [&str; 4] =
    ["ls_in_pre_stateful", "ls_in_lb_aff_check", "ls_in_lb", "ls_in_lb_aff_learn"];

/// The load balancer flows in a list of flows: stage, priority, match and actions.
fn balancer_flows(list: &str) -> BTreeSet<String> {
    let of_stage = |line: &&str| STAGES.iter().any(|stage| line.contains(&format!("({stage} ")));
    let flows = list.lines().filter(of_stage).filter_map(|line| {
        let (_, flow) = line.split_once('(')?;
        let flow = flow.replace(" /* drop */", "");
        Some(flow.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    flows.filter(|flow| flow.contains("80")).collect()
}

#[test]
fn affinity_of_a_network_file_becomes_what_northd_makes_of_it() {
    testkit::require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("same");
    ovn.configure(&[
        "ls-add blue",
        "lb-add web 10.9.9.9:80 192.168.7.2:8080,192.168.7.3:8080 udp",
        "lb-add web6 [fd99::9]:80 [fd77::2]:8080,[fd77::3]:8080 tcp",
        "set Load_Balancer web options:affinity_timeout=60",
        "set Load_Balancer web6 options:affinity_timeout=61",
        "ls-lb-add blue web",
        "ls-lb-add blue web6",
    ]);
    let file = std::env::temp_dir().join(format!("weft-affinity-{}.toml", std::process::id()));
    let text = "tunnel = \"geneve\"\n[[host]]\nname = \"h1\"\nuplink = \"e\"\n\
                [[logical_switch]]\nname = \"blue\"\nvni = 5\nport = [{ name = \"a\", \
                host = \"h1\", mac = \"02:00:00:00:00:01\", device = { tap = \"a\" } }]\n\
                [[load_balancer]]\nname = \"web\"\nswitches = [\"blue\"]\nprotocol = \"udp\"\n\
                vip = \"10.9.9.9:80\"\naffinity = 60\n\
                backends = [\"192.168.7.2:8080\", \"192.168.7.3:8080\"]\n\
                [[load_balancer]]\nname = \"web6\"\nswitches = [\"blue\"]\nprotocol = \"tcp\"\n\
                vip = \"[fd99::9]:80\"\naffinity = 61\n\
                backends = [\"[fd77::2]:8080\", \"[fd77::3]:8080\"]\n";
    std::fs::write(&file, text).expect("a file can be written");
    let mut command = Command::new(WEFT);
    command.args(["flows", "--logical"]).arg(&file);
    let ours = run(command, b"");
    std::fs::remove_file(&file).expect("the file is there");
    // weft also compares the virtual address when it applies an affinity.
    let is_to_vip = [
        ("ip4.dst == 10.9.9.9 && udp.dst == 80", "ip4"),
        ("ip6.dst == fd99::9 && tcp.dst == 80", "ip6"),
    ];
    let ours: BTreeSet<String> = balancer_flows(&ours)
        .into_iter()
        .map(|flow| match flow.contains("reg9[6] == 1") {
            true => is_to_vip.iter().fold(flow, |flow, (ours, theirs)| flow.replace(ours, theirs)),
            false => flow,
        })
        .collect();
    let theirs = balancer_flows(&ovn.sbctl("lflow-list blue"));
    assert_eq!(theirs.len(), 2 + 2 + 2 + 4 + 4, "{theirs:#?}");
    assert_eq!(ours, theirs);
}
