//! Tests of expressions: tables of texts, and properties on random ones.

mod language;
mod oracle;
mod rows;

use super::*;
use crate::token::{Constant, Format, TokenKind};
use crate::{PortGroupMembers, Scope, lexer::Lexer};

/// A scope for tests. Ports: `eth0` (5), `eth1` (6, on this host), `group` (0x8001). Address sets:
/// `$ten` (10.0.0.1 to 3), `$nets`, `$macs`, `$six`, `$empty`, and `$many` and `$more` with 10,000
/// addresses each. Port groups: `@pg` and `@empty`.
pub(super) struct Names {
    sets: Vec<(&'static str, Vec<Constant>)>,
    groups: Vec<(&'static str, Vec<String>)>,
}

impl Default for Names {
    fn default() -> Self {
        let constants = |text: &str| {
            let mut lexer = Lexer::new(text);
            let mut found = Vec::new();
            while let TokenKind::Integer(constant) = lexer.advance().kind {
                found.push(constant);
            }
            found
        };
        let many = |octet: u32| {
            (0..10_000u32)
                .map(|at| Constant::new(((octet << 24) | (at * 3)).into(), Format::Ipv4))
                .collect()
        };
        Self {
            sets: vec![
                ("ten", constants("10.0.0.1 10.0.0.2 10.0.0.3")),
                ("nets", constants("10.0.0.0/8 192.168.0.0/16 1.2.3.4")),
                ("macs", constants("00:00:00:00:00:01 00:00:00:00:00:02")),
                ("six", constants("::1 fe80::/64")),
                ("empty", Vec::new()),
                ("many", many(10)),
                ("more", many(20)),
            ],
            groups: vec![
                ("pg", ["eth0", "nowhere", "eth1"].map(str::to_owned).into()),
                ("empty", Vec::new()),
            ],
        }
    }
}

impl Scope for Names {
    fn port(&self, name: &str) -> Option<u16> {
        match name {
            "eth0" => Some(5),
            "eth1" => Some(6),
            "group" => Some(0x8001),
            _ => None,
        }
    }

    fn address_set(&self, name: &str) -> Option<&[Constant]> {
        self.sets.iter().find(|set| set.0 == name).map(|set| &set.1[..])
    }

    fn port_group(&self, name: &str) -> Option<PortGroupMembers> {
        let (_, names) = self.groups.iter().find(|group| group.0 == name)?;
        let keys = names.iter().filter_map(|name| self.port(name)).collect();
        Some(PortGroupMembers { is_empty: names.is_empty(), keys })
    }

    fn is_chassis_resident(&self, port: &str) -> bool {
        port == "eth1"
    }
}
