//! Random programs and packets. Their values come from small sets, so that flows and packets often
//! match.

/// A deterministic pseudo-random generator.
pub struct Random {
    state: u64,
    /// True if programs use `normal`. Such programs push no tags, because `normal` in Open vSwitch
    /// removes a tag with VLAN ID 0.
    normal: bool,
    /// The number of tags that the flow may still push: Open vSwitch rejects a third one.
    tags_left: u64,
}

/// Packet types.
const KINDS: [&str; 13] = [
    "", "ip", "ipv6", "arp", "rarp", "icmp", "icmp6", "tcp", "tcp6", "udp", "udp6", "sctp", "sctp6",
];
const TABLES: u64 = 4;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed, normal: false, tags_left: 0 }
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    /// Flows, one per line, in several tables. A table resubmits only to later ones.
    pub fn flows(&mut self) -> String {
        let mut text = String::new();
        self.normal = self.chance(30);
        for table in 0..TABLES {
            for number in 0..10 {
                // No two flows of a table have the same priority, so that the winner is well
                // defined.
                text += &self.flow(table, 100 - number);
            }
            if self.chance(70) {
                text += &format!(
                    "table={table},priority=0 actions={}\n",
                    self.actions("", false, table)
                );
            }
        }
        text
    }

    fn flow(&mut self, table: u64, priority: u64) -> String {
        let kind = self.pick(&KINDS);
        let mut words = vec![format!("table={table}"), format!("priority={priority}")];
        words.extend(Some(kind.to_owned()).filter(|kind| !kind.is_empty()));
        let tag = match self.below(6) {
            0 => Some("dl_vlan=1"),
            1 => Some("vlan_tci=0x1000/0x1000"),
            2 => Some("vlan_tci=0x0000/0x1fff"),
            3 => Some("dl_vlan=1,dl_vlan_pcp=3"),
            _ => None,
        };
        words.extend(tag.map(str::to_owned));
        let mut fields = self.fields(kind, true);
        fields.retain(|_| self.chance(30));
        fields.truncate(3);
        words.extend(fields);
        let tagged = tag.is_some_and(|tag| tag != "vlan_tci=0x0000/0x1fff");
        let actions = self.actions(kind, tagged, table);
        format!("{} actions={actions}\n", words.join(","))
    }

    /// Random fields for a packet type. For a flow, some have masks and some are registers.
    fn fields(&mut self, kind: &str, in_flow: bool) -> Vec<String> {
        let mac = |n| format!("02:00:00:00:00:0{n}");
        let mut fields = vec![
            format!("in_port={}", self.below(4) + 1),
            format!("dl_src={}", mac(self.below(3))),
        ];
        fields.push(match self.below(4) {
            0 if in_flow => "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00".to_owned(),
            1 => "dl_dst=ff:ff:ff:ff:ff:ff".to_owned(),
            _ => format!("dl_dst={}", mac(self.below(3))),
        });
        if in_flow {
            fields.push(format!("reg{}={}", self.below(3), self.below(3)));
            fields.push(format!("metadata={}/0x3", self.below(3)));
        }
        let ip4 = |random: &mut Self| {
            let mask =
                if in_flow { random.pick(&["", "", "/24", "/30", "/255.255.0.255"]) } else { "" };
            format!("10.0.{}.{}{mask}", random.below(2), random.below(4) + 1)
        };
        let ip6 = |random: &mut Self| {
            let mask = if in_flow { random.pick(&["", "", "/64", "/ffff::ffff"]) } else { "" };
            format!("fd00::{}{mask}", random.below(3) + 1)
        };
        let version6 = kind == "ipv6" || kind.ends_with('6');
        match kind {
            "" => {}
            "arp" | "rarp" => {
                fields.push(format!("arp_op={}", self.below(2) + 1));
                fields.push(format!("arp_spa={}", ip4(self)));
                fields.push(format!("arp_tpa={}", ip4(self)));
                fields.push(format!("arp_sha={}", mac(self.below(3))));
            }
            _ if version6 => {
                fields.push(format!("ipv6_src={}", ip6(self)));
                fields.push(format!("ipv6_dst={}", ip6(self)));
                fields.push(format!("ipv6_label={}", self.below(2)));
            }
            _ => {
                fields.push(format!("nw_src={}", ip4(self)));
                fields.push(format!("nw_dst={}", ip4(self)));
            }
        }
        if !matches!(kind, "" | "arp" | "rarp") {
            fields.push(format!("nw_ttl={}", self.pick(&["64", "64", "64", "2", "1"])));
            fields.push(format!("nw_tos={}", self.below(2) * 4));
            fields.push(format!("nw_ecn={}", self.below(2)));
        }
        let transport = kind.trim_end_matches('6');
        if ["tcp", "udp", "sctp"].contains(&transport) {
            let mask = if in_flow { self.pick(&["", "", "/0xfff0", "/0x1"]) } else { "" };
            fields.push(format!("{transport}_dst={}{mask}", self.pick(&["80", "81", "443"])));
            fields.push(format!("{transport}_src={}", self.pick(&["1000", "1001"])));
            if transport == "tcp" {
                let flags: &[&str] = if in_flow {
                    &["+syn", "+syn-ack", "-rst"]
                } else {
                    &["syn", "ack", "syn|ack"]
                };
                fields.push(format!("tcp_flags={}", self.pick(flags)));
            }
        }
        match kind {
            "icmp" => fields.push(format!("icmp_type={}", self.pick(&["8", "0", "3"]))),
            "icmp6" => fields.push(format!("icmpv6_type={}", self.pick(&["128", "135", "1"]))),
            _ => {}
        }
        fields
    }

    /// A packet of a random kind, with all its fields.
    pub fn packet(&mut self) -> String {
        let kind = loop {
            let kind = self.pick(&KINDS);
            if !["ip", "ipv6"].contains(&kind) {
                break kind;
            }
        };
        let mut words: Vec<String> =
            Some(kind.to_owned()).filter(|kind| !kind.is_empty()).into_iter().collect();
        let mut fields = self.fields(kind, false);
        let fragment = !matches!(kind, "" | "arp" | "rarp") && self.chance(15);
        if fragment {
            let which = self.pick(&["first", "later"]);
            if which == "later" {
                fields.retain(|field| {
                    !field.starts_with("udp_")
                        && !field.starts_with("sctp_")
                        && !field.starts_with("tcp_")
                        && !field.starts_with("icmp")
                });
            }
            fields.push(format!("nw_frag={which}"));
        }
        words.extend(fields);
        match self.below(5) {
            0 => words.push("dl_vlan=1".to_owned()),
            1 => words.push("dl_vlan=1,dl_vlan_pcp=3".to_owned()),
            2 => words.push("dl_vlan=2".to_owned()),
            _ => {}
        }
        words.join(",")
    }

    fn actions(&mut self, kind: &str, mut tagged: bool, table: u64) -> String {
        if self.chance(8) {
            return "drop".to_owned();
        }
        let mut actions = Vec::new();
        self.tags_left = if tagged { 1 } else { 2 };
        for _ in 0..=self.below(5) {
            actions.push(self.action(kind, &mut tagged, table, 0));
        }
        if table + 1 < TABLES && self.chance(30) {
            actions.push(format!("goto_table:{}", table + 1 + self.below(TABLES - table - 1)));
        } else {
            actions.push(self.output());
        }
        actions.join(",")
    }

    fn output(&mut self) -> String {
        if self.normal && self.chance(30) {
            return "normal".to_owned();
        }
        self.pick(&[
            "output:1",
            "p2",
            "3",
            "output:4",
            "in_port",
            "flood",
            "all",
            "output:reg0",
            "output:reg1[0..15]",
        ])
        .to_owned()
    }

    fn action(&mut self, kind: &str, tagged: &mut bool, table: u64, depth: u64) -> String {
        match self.below(10) {
            0 | 1 => self.output(),
            2 if table + 1 < TABLES => {
                let next = table + 1 + self.below(TABLES - table - 1);
                let port = self.pick(&["", "", "1", "2", "in_port"]);
                format!("resubmit({port},{next})")
            }
            3 if depth == 0 => {
                let mut inside_tagged = *tagged;
                let count = self.below(4) + 1;
                let mut inside: Vec<String> =
                    (0..count).map(|_| self.action(kind, &mut inside_tagged, table, 1)).collect();
                inside.push(self.output());
                format!("clone({})", inside.join(","))
            }
            // No tags are popped inside `clone`: when Open vSwitch checks a flow, it assumes that
            // the tag is also missing after the `clone`.
            4 if self.normal => "mod_dl_src:02:00:00:00:00:08".to_owned(),
            4 if depth > 0 && self.tags_left > 0 => {
                self.tags_left -= 1;
                *tagged = true;
                "push_vlan:0x8100".to_owned()
            }
            4 if depth > 0 => "mod_dl_src:02:00:00:00:00:07".to_owned(),
            4 => self.tag_action(tagged),
            5 => self.register_action(),
            6 => "controller".to_owned(),
            _ => self.header_action(kind),
        }
    }

    fn tag_action(&mut self, tagged: &mut bool) -> String {
        if *tagged && self.chance(40) {
            return self
                .pick(&[
                    "set_field:4101->vlan_vid",
                    "set_field:4->vlan_pcp",
                    "set_field:4103->vlan_vid",
                    "move:vlan_tci[0..11]->reg0[0..11]",
                ])
                .to_owned();
        }
        let action = if self.tags_left > 0 && (!*tagged || self.chance(50)) {
            self.tags_left -= 1;
            // On an untagged frame, `mod_vlan_vid` behaves differently in each version of OpenFlow.
            self.pick(&["push_vlan:0x8100", "push_vlan:0x88a8"])
        } else if *tagged {
            self.pick(&["pop_vlan", "strip_vlan", "mod_vlan_vid:8", "mod_vlan_pcp:1"])
        } else {
            return "mod_dl_src:02:00:00:00:00:06".to_owned();
        };
        *tagged = !matches!(action, "pop_vlan" | "strip_vlan");
        action.to_owned()
    }

    fn register_action(&mut self) -> String {
        self.pick(&[
            "set_field:1->reg0",
            "set_field:2->reg1",
            "load:3->reg1[0..15]",
            "set_field:0x2/0x3->metadata",
            "move:in_port[]->reg1[0..15]",
            "move:dl_src[0..7]->reg2[0..7]",
            "push:reg0,pop:reg2",
            "push:dl_src[0..3],push:reg1[0..3],pop:reg0[0..3],pop:reg1[4..7]",
            "load:0x100000002->xreg0[]",
            "set_field:3->tun_id",
            "set_tunnel:2",
        ])
        .to_owned()
    }

    fn header_action(&mut self, kind: &str) -> String {
        let any = [
            "mod_dl_src:02:00:00:00:00:09",
            "mod_dl_dst:02:00:00:00:00:01",
            "set_field:02:00:00:00:00:02->dl_dst",
            "set_field:00:00:00:00:01:00/00:00:00:00:ff:00->eth_src",
            "move:dl_src->dl_dst",
            "load:0x5->eth_dst[0..3]",
        ];
        // Open vSwitch requires `ip` for some actions that need no match in OpenFlow 1.0.
        let of_ip =
            ["mod_nw_tos:16", "mod_nw_ecn:2", "mod_nw_ttl:33", "dec_ttl", "set_field:8->ip_dscp"];
        if !matches!(kind, "" | "arp" | "rarp") && self.chance(30) {
            return self.pick(&of_ip).to_owned();
        }
        let transport = kind.trim_end_matches('6');
        let own: &[&str] = match kind {
            // Open vSwitch loses writes to RARP fields.
            "rarp" => &["move:arp_sha->dl_dst"],
            "arp" => &[
                "set_field:10.0.0.7->arp_spa",
                "move:arp_spa->arp_tpa",
                "set_field:2->arp_op",
                "move:arp_sha->dl_dst",
                "load:1->arp_tha[]",
            ],
            "icmp" => {
                &["set_field:0->icmp_type", "set_field:1->icmp_code", "set_field:10.0.0.7->ip_src"]
            }
            "icmp6" => &["set_field:129->icmpv6_type", "set_field:fd00::9->ipv6_src"],
            "ip" => &[
                "set_field:10.0.0.7->ip_src",
                "mod_nw_src:10.0.0.9",
                "mod_nw_dst:10.0.1.1",
                "set_field:10.9.0.0/16->ip_dst",
                "move:ip_src->ip_dst",
                "dec_ttl",
                "set_field:9->nw_ttl",
            ],
            "ipv6" => &[
                "set_field:fd00::9->ipv6_src",
                "move:ipv6_src[0..63]->ipv6_dst[64..127]",
                "set_field:5->ipv6_label",
                "dec_ttl",
            ],
            _ if transport == "tcp" => &[
                "set_field:80->tcp_dst",
                "mod_tp_src:7",
                "move:tcp_src->tcp_dst",
                "set_field:0x10/0xf0->tcp_src",
            ],
            _ if transport == "udp" => {
                &["set_field:80->udp_dst", "mod_tp_dst:7", "move:udp_src->reg0[0..15]"]
            }
            _ if transport == "sctp" => &["set_field:80->sctp_dst", "mod_tp_dst:7"],
            _ => &any,
        };
        if self.chance(50) { self.pick(own) } else { self.pick(&any) }.to_owned()
    }
}
