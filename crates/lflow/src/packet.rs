//! Parses the description of a packet that enters a program.

use super::error::SyntaxError;
use super::expr::{self, parse_microflow, span_of_string};
use super::scope::{PortGroupMembers, Scope};
use super::token::Constant;
use flow::{Field, FlowKey};
use pipeline::{Datapath, InPortNames, Program};

/// The flow key of a packet that enters through a logical port, described like `inport == "vm1" &&
/// eth.dst == 00:00:00:00:00:02 && ip4.src == 10.0.0.1`. [`parse_microflow`] defines the language.
///
/// # Errors
/// Those of [`parse_microflow`]; or the description names no logical port through which packets
/// enter the program.
pub fn parse_packet(text: &str, program: &Program) -> Result<FlowKey, SyntaxError> {
    let condition = expr::parse(text)?;
    let Some(name) = condition.inport() else {
        let message = "The packet needs one logical ingress port: add `inport == \"NAME\"'.";
        return Err(SyntaxError::new(0..text.len(), message));
    };
    let number = InPortNames::of(program)
        .find(name)
        .map_err(|error| SyntaxError::new(span_of_string(text, name), sentence(&error)))?;
    let logical = program.port_role(number).and_then(|role| role.logical_port());
    let names = PacketNames(logical.and_then(|(datapath, _)| program.datapath(datapath)));
    let mut key = parse_microflow(text, &names)?.key;
    // The role of the ingress port determines the logical port.
    key.set(Field::Reg14, 0);
    key.set(Field::InPort, number.0.into());
    Ok(key)
}

/// The ports and multicast groups of a datapath.
struct PacketNames<'p>(Option<&'p Datapath>);

impl Scope for PacketNames<'_> {
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

    fn port_group(&self, _: &str) -> Option<PortGroupMembers> {
        None
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        true
    }
}

/// The error as a sentence, like the parser's errors.
fn sentence(error: &impl ToString) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    let end = if text.ends_with('?') { "" } else { "." };
    first.into_iter().chain(characters).chain(end.chars()).collect()
}
