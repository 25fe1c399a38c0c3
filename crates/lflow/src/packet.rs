//! A packet described in the logical language, as it comes into a program.

use super::error::SyntaxError;
use super::expr::{self, parse_microflow, place_of_text};
use super::scope::Scope;
use super::token::Constant;
use flow::{Field, FlowKey};
use pipeline::{Datapath, InPortNames, PortRole, Program};

/// The key of a packet that comes in by a logical port, such as
/// `inport == "vm1" && eth.dst == 00:00:00:00:00:02 && ip4.src == 10.0.0.1`; see [`parse_microflow`].
///
/// # Errors
/// As [`parse_microflow`]; or the description names no logical port by which packets come into the program.
pub fn parse_packet(text: &str, program: &Program) -> Result<FlowKey, SyntaxError> {
    let condition = expr::parse(text)?;
    let Some(name) = condition.inport() else {
        let message = "A packet comes in by one logical port: say `inport == \"NAME\"'.";
        return Err(SyntaxError::new(0..text.len(), message));
    };
    let number = InPortNames::of(program)
        .find(name)
        .map_err(|error| SyntaxError::new(place_of_text(text, name), sentence(&error)))?;
    let names = Names(match program.port_role(number) {
        Some(PortRole::Vif { datapath, .. }) => program.datapath(*datapath),
        _ => None,
    });
    let mut key = parse_microflow(text, &names)?.key;
    // The entry of the port says which logical port it is.
    key.set(Field::Reg14, 0);
    key.set(Field::InPort, number.0.into());
    Ok(key)
}

/// The ports and multicast groups of a datapath.
struct Names<'p>(Option<&'p Datapath>);

impl Scope for Names<'_> {
    fn port(&self, name: &str) -> Option<u16> {
        let datapath = self.0?;
        let port = datapath.ports.iter().find(|(_, port)| port.name == name);
        let group = || datapath.multicast.iter().find(|(_, group)| group.name == name);
        let key = port.map(|(key, _)| *key).or_else(|| group().map(|(key, _)| *key));
        key.map(|key| key.value())
    }

    fn address_set(&self, _: &str) -> Option<&[Constant]> {
        None
    }

    fn port_group(&self, _: &str) -> Option<&[String]> {
        None
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        true
    }
}

/// The error as the language's errors are written.
fn sentence(error: &impl ToString) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    let end = if text.ends_with('?') { "" } else { "." };
    first.into_iter().chain(characters).chain(end.chars()).collect()
}
