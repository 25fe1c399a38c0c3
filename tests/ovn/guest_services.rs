//! Tests the services that OVN provides to guests of weft, with real clients.

use super::{Hosts, lab, switch};
use crate::common::{GUEST_DEVICE, Guest, PATIENCE, traffic};
use crate::peers::carry_wire_frames;
use crate::peers::program::{Running, command, run};
use netdev::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;

const GATEWAY: &str = "192.168.7.254";
const GATEWAY_MAC: &str = "02:00:00:00:ff:01";

/// The script that udhcpc runs when it has a lease. It writes the environment to a file, and
/// configures the device.
const SCRIPT: &str = "#!/bin/sh\n\
    case \"$1\" in bound|renew) ;; *) exit 0 ;; esac\n\
    env > \"$LEASE_FILE\"\n\
    busybox ip address replace \"$ip/$mask\" dev \"$interface\"\n\
    busybox ip route replace default via \"$router\"\n";

/// Runs a DHCP client in the namespace of a guest. Returns the variables that it passes to its
/// script.
fn udhcpc(guest: &Guest, directory: &Path, arguments: &[&str]) -> BTreeMap<String, String> {
    let (script, lease) = (executable(directory, "udhcpc.sh", SCRIPT), directory.join("lease"));
    // Removes the lease file of an earlier call.
    let _ = std::fs::remove_file(&lease);
    let mut client = guest.netns.command(command("busybox"));
    client.args(["udhcpc", "-i", GUEST_DEVICE, "-f", "-q", "-n", "-t", "10", "-T", "1"]);
    client.arg("-s").arg(&script).args(arguments).env("LEASE_FILE", &lease);
    run(client, b"");
    read_lease(&lease)
}

/// Writes an executable script.
fn executable(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    if !path.exists() {
        std::fs::write(&path, text).expect("a file can be written");
        // Another process makes the script executable, for the reason that `copy_program` explains.
        let mut chmod = command("chmod");
        chmod.arg("+x").arg(&path);
        run(chmod, b"");
    }
    path
}

/// The variables that a client's script has written to this file.
fn read_lease(lease: &Path) -> BTreeMap<String, String> {
    let lease = std::fs::read_to_string(lease).expect("the client has a lease");
    let pairs = lease.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Removes all addresses from a guest.
fn forget_addresses(guest: &Guest) {
    let mut flush = guest.netns.command(command("ip"));
    flush.args(["address", "flush", "dev", GUEST_DEVICE]);
    run(flush, b"");
}

/// Configures the guests' logical switch, with port security and ACLs, and a router on it.
fn configure(ovn: &Ovn, guests: &[&Guest]) {
    ovn.configure(&switch("blue", guests));
    let secure = guests.iter().map(|Guest { name, mac, ip4, ip6, .. }| {
        format!("lsp-set-port-security {name} '{mac} {ip4} {ip6}'")
    });
    ovn.configure(&secure.collect::<Vec<_>>());
    // Stateful ACLs that let guests receive only replies. ovn-northd exempts services from them.
    let lists = guests.iter().flat_map(|Guest { name, .. }| {
        [
            format!("acl-add blue from-lport 1000 'inport == \"{name}\" && ip' allow-related"),
            format!("acl-add blue to-lport 900 'outport == \"{name}\" && ip' drop"),
            format!("acl-add blue to-lport 1000 'outport == \"{name}\" && icmp' allow-related"),
        ]
    });
    ovn.configure(&lists.collect::<Vec<_>>());
    ovn.configure(&[
        format!("lr-add r0 -- lrp-add r0 r0-blue {GATEWAY_MAC} {GATEWAY}/24 fd77::fe/64"),
        "lsp-add blue blue-r0 -- lsp-set-type blue-r0 router -- lsp-set-addresses blue-r0 router \
         -- lsp-set-options blue-r0 router-port=r0-blue"
            .to_owned(),
    ]);
}

#[test]
fn guest_gets_its_address_when_ovn_has_dhcp_options() {
    require_ovn!();
    testkit::require_program!("busybox", "busybox-static");
    let lab = lab();
    let ovn = Ovn::start("dhcp");
    let (near, far) = lab.ends();
    configure(&ovn, &[near, far]);
    let options = ovn.nbctl("create DHCP_Options cidr=192.168.7.0/24");
    let options = options.trim();
    let values = [
        ("server_id", GATEWAY),
        ("server_mac", GATEWAY_MAC),
        ("router", GATEWAY),
        ("lease_time", "3600"),
        ("mtu", "1400"),
        ("dns_server", "{192.0.2.53, 192.0.2.54}"),
        ("ntp_server", "192.0.2.123"),
        ("domain_name", "\"blue.example\""),
        ("domain_search_list", "\"blue.example, red.example\""),
        ("classless_static_route", "{198.51.100.0/24,192.168.7.9, 0.0.0.0/0,192.168.7.254}"),
        ("bootfile_name", "\"boot.ipxe\""),
        ("bootfile_name_alt", "\"boot.efi\""),
        ("next_server", "192.0.2.69"),
        ("tftp_server", "\"tftp.example\""),
    ];
    for (name, value) in values {
        let value = value.replace('"', "\\\"");
        ovn.nbctl(&format!("set DHCP_Options {options} 'options:{name}=\"{value}\"'"));
    }
    ovn.configure(&[
        format!("lsp-set-dhcpv4-options {} {options}", near.name),
        format!("lsp-set-dhcpv4-options {} {options}", far.name),
        format!("set Logical_Switch_Port {} 'options:hostname=\"\\\"near\\\"\"'", near.name),
    ]);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    // Without offloads, the kernel of each guest verifies every checksum.
    lab.guests.iter().for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
    let ask: Vec<&str> = "-O mtu -O ntpsrv -O search -O staticroutes -O bootfile -O tftp \
                          -O hostname -O domain"
        .split_whitespace()
        .collect();
    for guest in [near, far] {
        forget_addresses(guest);
        // The client requests a reply by broadcast, or does not.
        for broadcast in [&[][..], &["-B"]] {
            let lease = udhcpc(guest, lab.dir.path(), &[&ask[..], broadcast].concat());
            let ip = guest.ip4.to_string();
            for (name, value) in [
                ("ip", &*ip),
                ("mask", "24"),
                ("serverid", GATEWAY),
                ("router", GATEWAY),
                ("lease", "3600"),
                ("mtu", "1400"),
                ("dns", "192.0.2.53 192.0.2.54"),
                ("ntpsrv", "192.0.2.123"),
                ("domain", "blue.example"),
                ("search", "blue.example red.example"),
                ("staticroutes", "198.51.100.0/24 192.168.7.9 0.0.0.0/0 192.168.7.254"),
                // The boot file is that for clients other than iPXE.
                ("bootfile", "boot.efi"),
                ("siaddr", "192.0.2.69"),
                ("tftp", "tftp.example"),
            ] {
                assert_eq!(lease.get(name).map(String::as_str), Some(value), "{name}: {lease:#?}");
            }
            let hostname = (guest.name == near.name).then_some("near");
            assert_eq!(lease.get("hostname").map(String::as_str), hostname, "{lease:#?}");
        }
    }
    traffic::ping(&near.netns, GATEWAY.parse().expect("an address"));
    traffic::ping(&near.netns, far.ip(4));
    // A guest without DHCP options gets no address. A changed address is offered at once.
    ovn.nbctl(&format!("--wait=hv clear Logical_Switch_Port {} dhcpv4_options", far.name));
    assert!(is_unserved(far));
    let moved: IpAddr = [192, 168, 7, 77].into();
    let Guest { name, mac, .. } = near;
    ovn.configure(&[
        format!("lsp-set-port-security {name}"),
        format!("lsp-set-addresses {name} '{mac} {moved}'"),
    ]);
    ovn.nbctl("--wait=hv sync");
    let lease = udhcpc(near, lab.dir.path(), &[]);
    assert_eq!(lease.get("ip"), Some(&moved.to_string()));
    hosts.stop(&ovn);
}

/// The addresses of a guest that start with this prefix, in the format of `ip`.
fn addresses(guest: &Guest, prefix: &str) -> Vec<String> {
    let mut show = guest.netns.command(command("ip"));
    show.args(["-6", "-oneline", "address", "show", "dev", GUEST_DEVICE]);
    let shown = run(show, b"");
    let words = shown.split_whitespace();
    words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect()
}

/// The address that a guest's kernel derives from its MAC address (SLAAC).
fn slaac_address(guest: &Guest) -> Ipv6Addr {
    let [a, b, c, d, e, f] = guest.mac.0;
    let low = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(0xfd77 << 112 | u128::from(low))
}

#[test]
fn guest_makes_its_address_when_the_router_advertises_a_prefix() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("ra");
    let (near, far) = lab.ends();
    let makes = slaac_address(near);
    configure(&ovn, &[near, far]);
    let Guest { name, mac, .. } = near;
    ovn.configure(&[
        format!("lsp-set-port-security {name}"),
        format!("lsp-set-addresses {name} '{mac} {makes}'"),
        "set Logical_Router_Port r0-blue ipv6_ra_configs:address_mode=slaac \
         ipv6_ra_configs:mtu=1400 ipv6_ra_configs:router_preference=HIGH \
         ipv6_ra_configs:route_info=HIGH-2001:db8:7::/48 ipv6_ra_configs:rdnss=fd77::53 \
         ipv6_ra_configs:dnssl=blue.example"
            .to_owned(),
    ]);
    // With an address from the router, the guest would use that one as the source, which port
    // security drops.
    let ignore = format!("net/ipv6/conf/{GUEST_DEVICE}/accept_ra");
    far.netns.sysctl(&ignore, "0").expect("a sysctl can be set");
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    carry_wire_frames(&near.netns, GUEST_DEVICE);
    for (key, value) in
        [("accept_ra", "1"), ("accept_ra_rt_info_max_plen", "64"), ("addr_gen_mode", "0")]
    {
        let key = format!("net/ipv6/conf/{GUEST_DEVICE}/{key}");
        near.netns.sysctl(&key, value).expect("a sysctl can be set");
    }
    // The kernel solicits a router when the device is set up.
    let ip = |arguments: &str| {
        let mut ip = near.netns.command(command("ip"));
        ip.args(arguments.split_whitespace());
        run(ip, b"")
    };
    ip(&format!("link set {GUEST_DEVICE} down"));
    ip(&format!("link set {GUEST_DEVICE} up"));
    let expected = format!("{makes}/64");
    wait_until(PATIENCE, "the guest has an address", || {
        addresses(near, "fd77:").contains(&expected)
    });
    let routes = ip("-6 route show");
    for (route, detail) in [("default", "pref high"), ("2001:db8:7::/48", "pref high")] {
        let mut lines = routes.lines();
        let line = lines.find(|line| line.starts_with(route)).unwrap_or_default();
        let is_known = line.contains("via fe80::ff:fe00:ff01") && line.contains(detail);
        assert!(is_known, "{route}: {routes}");
    }
    let mtu = format!("/proc/sys/net/ipv6/conf/{GUEST_DEVICE}/mtu");
    let mtu = near.netns.run(|| std::fs::read_to_string(mtu)).expect("a sysctl can be read");
    assert_eq!(mtu.trim(), "1400");
    traffic::ping(&near.netns, "fd77::fe".parse().expect("an address"));
    traffic::ping(&far.netns, makes.into());
    hosts.stop(&ovn);
}

/// The script that dhclient runs. It writes the environment to a file, and adds the address.
const SCRIPT6: &str = "#!/bin/sh\n\
    case \"$reason\" in BOUND6|RENEW6|REBIND6|INFORM6) ;; *) exit 0 ;; esac\n\
    [ -z \"$new_ip6_address\" ] || ip address replace \"$new_ip6_address/64\" dev \"$interface\" nodad\n\
    env > \"$LEASE_FILE.new\"\n\
    mv \"$LEASE_FILE.new\" \"$LEASE_FILE\"\n";

/// Runs a DHCPv6 client in the namespace of a guest. Returns the variables that it passes to its
/// script.
fn dhclient(guest: &Guest, directory: &Path, arguments: &[&str]) -> BTreeMap<String, String> {
    let script = executable(directory, "dhclient.sh", SCRIPT6);
    let (lease, leases) = (directory.join("lease6"), directory.join("leases6"));
    for file in [&lease, &leases] {
        let _ = std::fs::remove_file(file);
    }
    let mut client = guest.netns.command(command("dhclient"));
    client.args(["-6", "-d", "-v", "-sf"]).arg(&script).arg("-lf").arg(&leases);
    client.arg("-pf").arg(directory.join("dhclient6.pid")).args(["-cf", "/dev/null"]);
    client.arg("-e").arg(format!("LEASE_FILE={}", lease.display()));
    client.args(arguments).arg(GUEST_DEVICE);
    let _running = Running::start("dhclient", client, directory);
    wait_until(PATIENCE, "the client has a lease", || lease.exists());
    read_lease(&lease)
}

#[test]
fn guest_gets_its_ipv6_address_when_ovn_has_dhcp_options() {
    require_ovn!();
    testkit::require_program!("dhclient", "isc-dhcp-client");
    let lab = lab();
    let ovn = Ovn::start("dhcp6");
    let (near, far) = lab.ends();
    configure(&ovn, &[near, far]);
    let options = |values: &str| {
        let created = ovn.nbctl("create DHCP_Options cidr=fd77\\:\\:/64");
        let options = created.trim().to_owned();
        ovn.nbctl(&format!("dhcp-options-set-options {options} server_id={GATEWAY_MAC} {values}"));
        options
    };
    let values = "'dns_server={fd77::53,fd77::54}' 'domain_search=\"example\"'";
    let stateful = options(values);
    let stateless = options(&format!("{values} dhcpv6_stateless=true"));
    ovn.configure(&[
        format!("lsp-set-dhcpv6-options {} {stateful}", near.name),
        format!("lsp-set-dhcpv6-options {} {stateless}", far.name),
    ]);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    lab.guests.iter().for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
    for guest in [near, far] {
        let netlink = guest.netns.netlink();
        let index = netlink.index_of(GUEST_DEVICE).expect("a guest has its device");
        let own = IpNet::new(guest.ip(6), 64).expect("a prefix");
        netlink.delete_address(index, own).expect("the address is there");
    }
    let ip6 = near.ip6.to_string();
    for (guest, arguments, address) in [(near, &[][..], Some(&*ip6)), (far, &["-S"], None)] {
        let lease = dhclient(guest, lab.dir.path(), arguments);
        for (name, value) in [
            ("new_ip6_address", address),
            ("new_dhcp6_name_servers", Some("fd77::53 fd77::54")),
            ("new_dhcp6_domain_search", Some("example.")),
            ("new_dhcp6_server_id", Some("0:3:0:1:2:0:0:0:ff:1")),
        ] {
            assert_eq!(lease.get(name).map(String::as_str), value, "{name}: {lease:#?}");
        }
    }
    traffic::ping(&near.netns, "fd77::fe".parse().expect("an address"));
    hosts.stop(&ovn);
}

/// The addresses and names in the answer to a DNS query, in the order in which the client prints
/// them.
fn nslookup(guest: &Guest, question: &str, server: &str) -> Vec<String> {
    let mut client = guest.netns.command(command("busybox"));
    client.args(["nslookup", question, server]);
    let output = run(client, b"");
    // The first paragraph of the output is about the server.
    let (_, answer) = output.split_once("\n\n").unwrap_or_default();
    let values = answer.lines().filter_map(|line| {
        let address = line.strip_prefix("Address: ");
        address.or_else(|| Some(line.split_once("name = ")?.1))
    });
    let mut values: Vec<String> = values.map(|value| value.trim().to_owned()).collect();
    values.sort();
    values
}

#[test]
fn guest_resolves_names_when_ovn_has_dns_records() {
    require_ovn!();
    testkit::require_program!("busybox", "busybox-static");
    let lab = lab();
    let ovn = Ovn::start("dns");
    let (near, far) = lab.ends();
    configure(&ovn, &[near, far]);
    let set = ovn.nbctl("create DNS external_ids:of=blue");
    let set = set.trim();
    let (ip4, ip6) = (far.ip4.to_string(), far.ip6.to_string());
    ovn.configure(&[
        format!("set DNS {set} 'records:far.example=\"{ip4} {ip6}\"'"),
        format!("set DNS {set} 'records:2.7.168.192.in-addr.arpa=\"far.example\"'"),
        format!("set Logical_Switch blue dns_records={set}"),
    ]);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    carry_wire_frames(&near.netns, GUEST_DEVICE);
    for server in [GATEWAY, "fd77::fe"] {
        assert_eq!(nslookup(near, "far.example", server), [&*ip4, &ip6]);
        assert_eq!(nslookup(near, "192.168.7.2", server), ["far.example"]);
    }
    // A query for a name without a record goes to the DNS server, if the ACLs allow it.
    let (near_ip, far_ip) = (near.ip4, far.ip4);
    let server = far.netns.run(|| UdpSocket::bind((far_ip, 53))).expect("a socket");
    let client = near.netns.run(|| UdpSocket::bind((near_ip, 0))).expect("a socket");
    let question = b"id\x01\0\0\x01\0\0\0\0\0\0\x05other\0\0\x01\0\x01";
    let mut received = [0; 64];
    let mut ask = |patience| {
        server.set_read_timeout(Some(patience)).expect("a socket has a timeout");
        client.send_to(question, (far_ip, 53)).expect("a datagram is sent");
        server.recv(&mut received).map(|len| received[..len].to_vec())
    };
    assert!(ask(Duration::from_millis(300)).is_err(), "an ACL drops the question");
    ovn.nbctl("--wait=hv acl-del blue");
    assert_eq!(ask(PATIENCE).expect("the question arrives"), question);
    // A changed record is used as soon as `--wait=hv` returns.
    let moved = ["192.0.2.7", "2001:db8::7"];
    let value = moved.join(" ");
    ovn.nbctl(&format!("--wait=hv set DNS {set} 'records:far.example=\"{value}\"'"));
    assert_eq!(nslookup(near, "far.example", GATEWAY), moved);
    hosts.stop(&ovn);
}

/// Returns true if a DHCP client gets no lease.
fn is_unserved(guest: &Guest) -> bool {
    let mut client = guest.netns.command(command("busybox"));
    client.args(["udhcpc", "-i", GUEST_DEVICE, "-f", "-q", "-n", "-t", "2", "-T", "1"]);
    let ended = client.arg("-s").arg("/bin/true").output().expect("busybox runs");
    !ended.status.success()
}
