//! [`InPortNames`]: the ingress ports of a program, by name.

use crate::program::{PortRole, Program};
use crate::suggestion::suggestion;
use flow::PortNo;
use std::collections::BTreeMap;

/// The datapath ports through which packets may arrive, by name.
#[derive(Clone, Debug)]
pub struct InPortNames<'p>(BTreeMap<&'p str, PortNo>);

/// The program has no ingress port of this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown ingress port `{name}`{hint}")]
pub struct UnknownPort {
    name: String,
    hint: String,
}

impl<'p> InPortNames<'p> {
    /// The names of the guests' logical ports on this host, and of the ports of a bridge.
    pub fn of(program: &'p Program) -> Self {
        let guests = program.port_roles().filter_map(|(number, role)| {
            if let PortRole::Bridge { .. } = role {
                return program.bridge_port(number).map(|port| (port.name.as_str(), number));
            }
            let (datapath, port) = role.logical_port()?;
            let port = program.datapath(datapath)?.ports.get(&port)?;
            Some((port.name.as_str(), number))
        });
        Self(guests.collect())
    }

    /// The number of the port with this name.
    ///
    /// # Errors
    /// The name is unknown. The error suggests the nearest name, or lists the known ones.
    pub fn find(&self, name: &str) -> Result<PortNo, UnknownPort> {
        self.0.get(name).copied().ok_or_else(|| {
            let near = suggestion(name, self.0.keys().copied());
            let hint = if near.is_empty() { self.known_names() } else { near };
            UnknownPort { name: name.to_owned(), hint }
        })
    }

    /// Lists the first known names for an error message, and the number of the others.
    fn known_names(&self) -> String {
        const SHOWN: usize = 8;
        let names: Vec<_> = self.0.keys().take(SHOWN).map(|name| format!("`{name}`")).collect();
        match self.0.len().saturating_sub(SHOWN) {
            _ if names.is_empty() => "; the program has no ingress ports".to_owned(),
            0 => format!("; known ports: {}", names.join(", ")),
            more => format!("; known ports: {} and {more} more", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{BridgePort, BridgePortKind, Datapath, DatapathKind};

    #[test]
    fn unknown_port_is_answered_with_the_known_names() {
        let find = |count: u32, name: &str| {
            let mut program = Program::default();
            let bridge = Datapath::new("bridge", DatapathKind::Bridge);
            program.set_datapath(Program::BRIDGE, bridge);
            for number in 1..=count {
                let name = format!("guest{number}");
                let number = PortNo(number);
                let port = BridgePort { name, number, kind: BridgePortKind::Device };
                program.set_bridge_port(Program::BRIDGE, number, port);
            }
            InPortNames::of(&program).find(name).map_err(|error| error.to_string())
        };
        let wrong = |name: &str, hint: &str| Err(format!("unknown ingress port `{name}`; {hint}"));
        assert_eq!(find(2, "guest2"), Ok(PortNo(2)));
        assert_eq!(find(2, "gest2"), wrong("gest2", "did you mean `guest2`?"));
        assert_eq!(find(2, "eth0"), wrong("eth0", "known ports: `guest1`, `guest2`"));
        assert!(find(11, "eth0").unwrap_err().ends_with("`guest6` and 3 more"));
        assert_eq!(find(0, "eth0"), wrong("eth0", "the program has no ingress ports"));
    }
}
