//! The test networks: ovn-nbctl commands that build them, and the addresses for packets.

/// A network, and addresses for its packets.
pub struct Network {
    /// The name, for the directory and messages.
    pub name: &'static str,
    /// The ovn-nbctl commands.
    pub commands: Vec<String>,
    /// ovn-sbctl commands to run afterwards, which add learned state. `{NAME}` stands for the UUID
    /// of that datapath.
    pub learned: Vec<String>,
    /// MAC addresses used in the network.
    pub macs: Vec<&'static str>,
    /// IPv4 addresses used in the network.
    pub ipv4: Vec<&'static str>,
    /// IPv6 addresses used in the network.
    pub ipv6: Vec<&'static str>,
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// MAC addresses with a meaning in every network.
const MACS: [&str; 5] = [
    "ff:ff:ff:ff:ff:ff",
    "01:00:5e:01:02:03",
    "33:33:ff:00:00:04",
    "33:33:00:00:00:01",
    "02:00:00:00:77:77",
];
const IPV4: [&str; 5] = ["0.0.0.0", "255.255.255.255", "239.1.2.3", "224.0.0.1", "203.0.113.9"];
const IPV6: [&str; 5] = ["::", "ff02::1", "ff02::1:ff00:4", "ff05::7", "2001:db8::77"];

fn with<const N: usize>(common: [&'static str; 5], own: [&'static str; N]) -> Vec<&'static str> {
    own.into_iter().chain(own).chain(common).collect()
}

/// Two switches, a distributed router, stateless ACLs in both directions, port security.
pub fn acls() -> Network {
    let commands = lines(
        r#"
        ls-add sw0
        lsp-add sw0 vm1
        lsp-set-addresses vm1 "02:00:00:00:00:01 10.0.0.1 fd00::1"
        lsp-set-port-security vm1 "02:00:00:00:00:01 10.0.0.1 fd00::1"
        lsp-add sw0 vm2
        lsp-set-addresses vm2 "02:00:00:00:00:02 10.0.0.2 fd00::2"
        lsp-add sw0 vm3
        lsp-set-addresses vm3 "02:00:00:00:00:03 10.0.0.3"
        lsp-set-port-security vm3 "02:00:00:00:00:03 10.0.0.3" "02:00:00:00:00:33"
        lsp-add sw0 vm4
        lsp-set-addresses vm4 "02:00:00:00:00:04"
        lsp-set-port-security vm4 "02:00:00:00:00:04"
        lsp-add sw0 vm5
        lsp-set-addresses vm5 "02:00:00:00:00:05 10.0.0.5"
        lsp-set-enabled vm5 disabled
        ls-add sw1
        lsp-add sw1 vm6
        lsp-set-addresses vm6 "02:00:00:00:00:06 10.0.1.6 fd01::6"
        lsp-add sw1 vm7
        lsp-set-addresses vm7 "02:00:00:00:00:07 10.0.1.7 10.0.1.77 fd01::7"
        lr-add lr0
        lrp-add lr0 lr0-sw0 00:00:00:00:ff:01 10.0.0.254/24 fd00::254/64
        lrp-add lr0 lr0-sw1 00:00:00:00:ff:02 10.0.1.254/24 fd01::254/64
        lsp-add sw0 sw0-lr0
        lsp-set-type sw0-lr0 router
        lsp-set-addresses sw0-lr0 router
        lsp-set-options sw0-lr0 router-port=lr0-sw0
        lsp-add sw1 sw1-lr0
        lsp-set-type sw1-lr0 router
        lsp-set-addresses sw1-lr0 router
        lsp-set-options sw1-lr0 router-port=lr0-sw1
        pg-add pg_web vm2 vm6
        pg-add pg_all vm1 vm2 vm3 vm4
        create address_set name=as_bad 'addresses="10.0.1.7","10.0.0.128/25"'
        create address_set name=as_bad6 'addresses="fd01::7","2001:db8::/32"'
        acl-add pg_all from-lport 1000 'inport == @pg_all && ip4.dst == $as_bad' drop
        acl-add pg_all from-lport 900 'inport == @pg_all && ip6.dst == $as_bad6' reject
        acl-add pg_web to-lport 1100 'outport == @pg_web && tcp.dst >= 80 && tcp.dst <= 443' allow-stateless
        acl-add pg_web to-lport 1000 'outport == @pg_web && (tcp || udp.dst == {53, 54} || 1024 <= udp.dst <= 2047)' reject
        acl-add sw0 to-lport 500 'ip.ttl == 7' drop
        acl-add sw1 from-lport 700 'ip4 && icmp4.type == 8 && ip4.dst != 10.0.0.0/24' drop
        acl-add sw1 to-lport 800 'outport == "vm7" && ip4.src == 10.0.0.2 && udp' drop
        "#,
    );
    Network {
        name: "acls",
        commands,
        learned: Vec::new(),
        macs: with(
            MACS,
            [
                "02:00:00:00:00:01",
                "02:00:00:00:00:02",
                "02:00:00:00:00:03",
                "02:00:00:00:00:33",
                "02:00:00:00:00:04",
                "02:00:00:00:00:05",
                "02:00:00:00:00:06",
                "02:00:00:00:00:07",
                "00:00:00:00:ff:01",
                "00:00:00:00:ff:02",
            ],
        ),
        ipv4: with(
            IPV4,
            [
                "10.0.0.1",
                "10.0.0.2",
                "10.0.0.3",
                "10.0.0.5",
                "10.0.0.200",
                "10.0.1.6",
                "10.0.1.7",
                "10.0.1.77",
                "10.0.0.254",
                "10.0.1.254",
                "10.0.1.99",
            ],
        ),
        ipv6: with(
            IPV6,
            [
                "fd00::1",
                "fd00::2",
                "fd01::6",
                "fd01::7",
                "fd00::254",
                "fd01::254",
                "fe80::1",
                "fe80::ff:fe00:1",
                "fe80::200:ff:fe00:ff01",
                "fd01::99",
            ],
        ),
    }
}

/// Three routers in a row with a switch each; static routes, ECMP routes, both IP versions, DHCP
/// options.
pub fn routers() -> Network {
    let mut commands = lines(
        r#"
        lr-add r1
        lr-add r2
        lr-add r3
        ls-add join
        "#,
    );
    for number in 1..=3 {
        let router = format!("r{number}");
        let switch = format!("sw{number}");
        commands.extend([
            format!("ls-add {switch}"),
            format!("lrp-add {router} {router}-in 00:00:00:00:1{number}:01 10.{number}.0.254/24 fd0{number}::254/64"),
            format!("lrp-add {router} {router}-join 00:00:00:00:1{number}:02 172.16.0.{number}/24 fd99::{number}/64"),
            format!("lsp-add {switch} {switch}-r"),
            format!("lsp-set-type {switch}-r router"),
            format!("lsp-set-addresses {switch}-r router"),
            format!("lsp-set-options {switch}-r router-port={router}-in"),
            format!("lsp-add join join-{router}"),
            format!("lsp-set-type join-{router} router"),
            format!("lsp-set-addresses join-{router} router"),
            format!("lsp-set-options join-{router} router-port={router}-join"),
        ]);
        for guest in 1..=2 {
            let port = format!("vm{number}{guest}");
            commands.extend([
                format!("lsp-add {switch} {port}"),
                format!("lsp-set-addresses {port} '02:00:00:00:0{number}:0{guest} 10.{number}.0.{guest} fd0{number}::{guest}'"),
            ]);
        }
        for other in (1..=3).filter(|&other| other != number) {
            commands.extend([
                format!("lr-route-add {router} 10.{other}.0.0/24 172.16.0.{other}"),
                format!("lr-route-add {router} fd0{other}::/64 fd99::{other}"),
            ]);
        }
    }
    commands.extend(lines(
        r#"
        --ecmp lr-route-add r1 203.0.113.0/24 172.16.0.2
        --ecmp lr-route-add r1 203.0.113.0/24 172.16.0.3
        --ecmp lr-route-add r1 2001:db8::/32 fd99::2
        --ecmp lr-route-add r1 2001:db8::/32 fd99::3
        --policy=src-ip lr-route-add r2 10.2.0.2/32 172.16.0.1
        lr-route-add r3 198.51.100.0/24 discard
        lr-route-add r2 203.0.113.0/24 10.2.0.1
        create dhcp_options cidr=10.1.0.0/24 options:server_id=10.1.0.254 'options:server_mac="02:00:00:00:0d:0d"' options:lease_time=3600
        "#,
    ));
    Network {
        name: "routers",
        commands,
        learned: vec![
            "create MAC_Binding logical_port=r2-in ip=10.2.0.77 'mac=\"02:00:00:00:02:77\"' \
             datapath={r2}"
                .into(),
            "create Static_MAC_Binding logical_port=r3-in 'ip=\"fd03::77\"' \
             'mac=\"02:00:00:00:03:77\"' override_dynamic_mac=false datapath={r3}"
                .into(),
        ],
        macs: with(
            MACS,
            [
                "02:00:00:00:01:01",
                "02:00:00:00:01:02",
                "02:00:00:00:02:01",
                "02:00:00:00:02:02",
                "02:00:00:00:03:01",
                "02:00:00:00:03:02",
                "00:00:00:00:11:01",
                "00:00:00:00:12:01",
                "00:00:00:00:13:01",
                "00:00:00:00:11:01",
                "00:00:00:00:12:01",
                "00:00:00:00:13:01",
            ],
        ),
        ipv4: with(
            IPV4,
            [
                "10.1.0.1",
                "10.1.0.2",
                "10.2.0.1",
                "10.2.0.2",
                "10.3.0.1",
                "10.3.0.2",
                "10.1.0.254",
                "10.2.0.254",
                "10.3.0.254",
                "172.16.0.1",
                "172.16.0.2",
                "172.16.0.3",
                "10.2.0.77",
                "10.3.0.99",
                "198.51.100.7",
            ],
        ),
        ipv6: with(
            IPV6,
            [
                "fd01::1",
                "fd01::2",
                "fd02::1",
                "fd02::2",
                "fd03::1",
                "fd03::2",
                "fd01::254",
                "fd02::254",
                "fd99::1",
                "fd99::3",
                "fd03::77",
                "fd02::99",
                "fe80::1",
                "fe80::200:ff:fe00:1101",
            ],
        ),
    }
}

/// Unknown addresses and learned FDB entries, multicast with and without snooping, localnet ports,
/// an MTU, policies.
pub fn layer2() -> Network {
    let commands = lines(
        r#"
        ls-add sw0
        set logical_switch sw0 other_config:mcast_snoop=true other_config:mcast_querier=false
        lsp-add sw0 vm1
        lsp-set-addresses vm1 "02:00:00:00:00:01 10.0.0.1 fd00::1"
        lsp-add sw0 vm2
        lsp-set-addresses vm2 unknown
        lsp-add sw0 vm3
        lsp-set-addresses vm3 "02:00:00:00:00:03 10.0.0.3" unknown
        lsp-set-port-security vm3 "02:00:00:00:00:03" "02:00:00:00:00:13"
        lsp-add sw0 ln0
        lsp-set-type ln0 localnet
        lsp-set-addresses ln0 unknown
        lsp-set-options ln0 network_name=phys
        ls-add sw1
        set logical_switch sw1 other_config:mcast_snoop=true other_config:mcast_flood_unregistered=true other_config:mcast_querier=false
        lsp-add sw1 vm4
        lsp-set-addresses vm4 "02:00:00:00:00:04 10.0.1.4 fd01::4"
        lsp-add sw1 vm5
        lsp-set-addresses vm5 "02:00:00:00:00:05 10.0.1.5 fd01::5" "02:00:00:00:00:15 10.0.1.15"
        ls-add sw2
        lsp-add sw2 vm6
        lsp-set-addresses vm6 "02:00:00:00:00:06 10.0.2.6"
        lsp-add sw2 vm7
        lsp-set-addresses vm7 "02:00:00:00:00:07 10.0.2.7"
        lsp-add sw2 vm8
        lsp-set-addresses vm8 "02:00:00:00:00:08 10.0.2.8"
        lsp-set-type vm8 localport
        lr-add lr0
        lrp-add lr0 lr0-sw0 00:00:00:00:ff:01 10.0.0.254/24 fd00::254/64
        lrp-add lr0 lr0-sw1 00:00:00:00:ff:02 10.0.1.254/24 fd01::254/64
        lrp-add lr0 lr0-sw2 00:00:00:00:ff:03 10.0.2.254/24
        set logical_router_port lr0-sw1 options:gateway_mtu=1000
        lsp-add sw0 sw0-lr0
        lsp-set-type sw0-lr0 router
        lsp-set-addresses sw0-lr0 router
        lsp-set-options sw0-lr0 router-port=lr0-sw0
        lsp-add sw1 sw1-lr0
        lsp-set-type sw1-lr0 router
        lsp-set-addresses sw1-lr0 router
        lsp-set-options sw1-lr0 router-port=lr0-sw1
        lsp-add sw2 sw2-lr0
        lsp-set-type sw2-lr0 router
        lsp-set-addresses sw2-lr0 router
        lsp-set-options sw2-lr0 router-port=lr0-sw2
        lr-policy-add lr0 100 'ip4.src == 10.0.1.4 && ip4.dst == 10.0.2.6' drop
        lr-policy-add lr0 90 'ip4.src == 10.0.1.5' reroute 10.0.0.77
        lr-policy-add lr0 80 'ip6.dst == 2001:db8::/32' allow
        lr-route-add lr0 203.0.113.0/24 10.0.0.1
        lr-route-add lr0 2001:db8::/32 fd00::1
        "#,
    );
    Network {
        name: "layer2",
        commands,
        learned: vec![
            "create FDB 'mac=\"02:00:00:00:00:22\"' dp_key={#sw0} port_key={#vm2}".into(),
            "create FDB 'mac=\"02:00:00:00:00:13\"' dp_key={#sw0} port_key={#vm3}".into(),
            "create MAC_Binding logical_port=lr0-sw0 ip=10.0.0.77 'mac=\"02:00:00:00:00:22\"' \
             datapath={lr0}"
                .into(),
        ],
        macs: with(
            MACS,
            [
                "02:00:00:00:00:01",
                "02:00:00:00:00:22",
                "02:00:00:00:00:03",
                "02:00:00:00:00:13",
                "02:00:00:00:00:04",
                "02:00:00:00:00:05",
                "02:00:00:00:00:15",
                "02:00:00:00:00:06",
                "02:00:00:00:00:07",
                "00:00:00:00:ff:01",
                "00:00:00:00:ff:02",
                "00:00:00:00:ff:03",
                "00:00:00:00:ff:01",
                "00:00:00:00:ff:02",
            ],
        ),
        ipv4: with(
            IPV4,
            [
                "10.0.0.1",
                "10.0.0.3",
                "10.0.0.77",
                "10.0.1.4",
                "10.0.1.5",
                "10.0.1.15",
                "10.0.2.6",
                "10.0.2.7",
                "10.0.2.8",
                "10.0.0.254",
                "10.0.1.254",
                "10.0.2.254",
                "10.0.2.99",
            ],
        ),
        ipv6: with(
            IPV6,
            ["fd00::1", "fd01::4", "fd01::5", "fd00::254", "fd01::254", "fd00::99", "fe80::1"],
        ),
    }
}

/// The network of [`acls`], with ACLs that allow related packets in both directions.
pub fn stateful_acls(name: &'static str) -> Network {
    let mut network = acls();
    network.name = name;
    network.commands.extend(lines(
        r#"
        acl-add sw0 to-lport 1050 'outport == "vm2" && (tcp.dst == 80 || icmp4)' allow-related
        acl-add sw0 from-lport 1050 'inport == "vm1" && ip4 && udp' allow-related
        acl-add sw0 to-lport 400 'outport == "vm1" && udp' allow
        acl-add sw0 to-lport 300 'ip6 && tcp' drop
        acl-add sw1 from-lport 1200 'ip4.dst == 10.0.1.0/24 && tcp' allow-related
        acl-add sw1 to-lport 650 'ip6 && udp' reject
        "#,
    ));
    network
}

/// A large deployment at a tenth of its size: 5 routers with 20 switches each, and 12 guests at
/// each switch.
pub fn large() -> Network {
    let mut commands = Vec::new();
    for router in 0..5 {
        commands.push(format!("lr-add r{router}"));
    }
    for switch in 0..100 {
        let (router, high, low) = (switch % 5, switch >> 8, switch & 0xff);
        let mac = format!("00:01:{high:02x}:{low:02x}:00:01");
        commands.extend([
            format!("ls-add sw{switch}"),
            format!("lrp-add r{router} r-sw{switch} {mac} 10.{high}.{low}.254/24"),
            format!("lsp-add sw{switch} sw{switch}-r"),
            format!("lsp-set-type sw{switch}-r router"),
            format!("lsp-set-addresses sw{switch}-r router"),
            format!("lsp-set-options sw{switch}-r router-port=r-sw{switch}"),
        ]);
        for guest in 1..=12 {
            let mac = format!("02:00:{high:02x}:{low:02x}:00:{guest:02x}");
            let addresses = format!("{mac} 10.{high}.{low}.{guest} fd00:{switch:x}::{guest:x}");
            commands.push(format!("lsp-add sw{switch} vm-{switch}-{guest}"));
            commands.push(format!("lsp-set-addresses vm-{switch}-{guest} '{addresses}'"));
        }
    }
    Network {
        name: "large",
        commands,
        learned: Vec::new(),
        macs: with(MACS, ["02:00:00:07:00:01", "00:01:00:07:00:01"]),
        ipv4: with(IPV4, ["10.0.7.1", "10.0.7.254", "10.0.57.3", "10.0.12.12"]),
        ipv6: with(IPV6, ["fd00:7::1", "fd00:39::3"]),
    }
}
