//! Compiles the words of a match to a [`Match`], and prints a `Match` as canonical text.
//!
//! A word for a field that the matched packets may not have is an error. If the word were ignored,
//! the match would apply to more packets than its author intended.

use super::names::{self, Name, PacketKind, SHORTHANDS, TAGGED};
use super::ports::{Ports, Shortened};
use super::text::{Item, Parsed, TextSlice, Value};
use super::value::{DisplayValue, MaskedValue};
use flow::{Field, FlowMask, Match, OfctlSyntax, Prerequisite, low_bits};
use pipeline::suggestion;
use std::fmt::Write;

/// The bits of the VLAN ID.
const VID: u128 = 0xfff;
const PCP: u128 = 0xe000;

/// The words of a match that have been parsed so far.
#[derive(Debug, Default)]
pub(super) struct MatchWords<'a> {
    shorthands: Vec<(TextSlice<'a>, u16, Option<u8>)>,
    fields: Vec<FieldWord<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct FieldWord<'a> {
    word: TextSlice<'a>,
    name: &'static Name,
    masked: MaskedValue,
}

impl<'a> MatchWords<'a> {
    /// Adds a word that belongs to a match. False for any other word.
    pub fn take(&mut self, item: Item<'a>, ports: &Ports) -> Parsed<bool> {
        let word = item.word;
        if let Some(&(_, ethertype, protocol)) =
            SHORTHANDS.iter().find(|(name, ..)| *name == word.text)
        {
            item.no_operand()?;
            self.shorthands.push((word, ethertype, protocol));
            return Ok(true);
        }
        let Some(name) = names::find(word.text) else { return Ok(false) };
        let masked = match (name.syntax, item.value) {
            (OfctlSyntax::TunnelOption(_), Value::None) => MaskedValue { value: 0, mask: 0 },
            _ => name.parse(item.operand("a value")?, ports)?,
        };
        self.fields.push(FieldWord { word, name, masked });
        Ok(true)
    }

    /// The conjunction of all words.
    pub fn condition(self) -> Parsed<Match> {
        let mut builder = MatchBuilder { condition: Match::any(), constrained: Vec::new() };
        for (word, ethertype, protocol) in &self.shorthands {
            builder.shorthand(*word, *ethertype, *protocol)?;
        }
        let mut fields = self.fields;
        // Fields that are prerequisites of other fields are compiled first, so that the order of
        // the words does not matter.
        fields.sort_by_key(|field| match field.name.field {
            Field::EthType => 0,
            Field::IpProto => 1,
            Field::IcmpType => 2,
            _ => 3,
        });
        for field in &fields {
            builder.field(field)?;
        }
        builder.check_sense(&fields)?;
        Ok(builder.condition)
    }

    /// The first word that does not give one exact value.
    pub fn inexact(&self) -> Option<TextSlice<'a>> {
        let inexact =
            |field: &&FieldWord<'_>| field.masked.mask != low_bits(field.name.value_width());
        self.fields.iter().find(inexact).map(|field| field.word)
    }
}

struct MatchBuilder<'a> {
    condition: Match,
    /// The bits that each word constrains, to find contradictions and duplicates.
    constrained: Vec<(TextSlice<'a>, FlowMask)>,
}

impl<'a> MatchBuilder<'a> {
    fn shorthand(
        &mut self,
        word: TextSlice<'a>,
        ethertype: u16,
        protocol: Option<u8>,
    ) -> Parsed<()> {
        self.require(word, Field::EthType, ethertype.into(), u128::MAX)?;
        let mut bits = FlowMask::default();
        bits.add(Field::EthType);
        if let Some(protocol) = protocol {
            self.require(word, Field::IpProto, protocol.into(), u128::MAX)?;
            bits.add(Field::IpProto);
        }
        self.constrained.push((word, bits));
        Ok(())
    }

    fn require(
        &mut self,
        word: TextSlice<'a>,
        field: Field,
        value: u128,
        mask: u128,
    ) -> Parsed<()> {
        let mask = mask & field.all_ones();
        if self.condition.require(field, value, mask) {
            return Ok(());
        }
        let other =
            self.word_constraining(field, mask).map_or("the rest of the match", |word| word.text);
        Err(word.fault(format!("`{}` contradicts `{other}`", word.text)))
    }

    fn word_constraining(&self, field: Field, mask: u128) -> Option<TextSlice<'a>> {
        self.constrained.iter().find(|(_, bits)| bits.get(field) & mask != 0).map(|&(word, _)| word)
    }

    fn field(&mut self, given: &FieldWord<'a>) -> Parsed<()> {
        let packet_kind = PacketKind::of(&self.condition);
        let FieldWord { word, masked, .. } = *given;
        let name = as_arp(given.name, &packet_kind);
        if !packet_kind.meets(needs_of_match(name)) {
            return Err(word.fault(format!(
                "`{}` needs {} in the match",
                word.text,
                needs_in_match(given.name)
            )));
        }
        let required = required(name, masked);
        let mut bits = FlowMask::default();
        for &(field, value, mask, own) in &required {
            let shorthand = matches!(field, Field::EthType | Field::IpProto);
            if let Some(other) = self.word_constraining(field, own).filter(|other| {
                !shorthand || !SHORTHANDS.iter().any(|(name, ..)| *name == other.text)
            }) {
                let message = if other.text == word.text {
                    format!("duplicate `{}`", word.text)
                } else {
                    format!("`{}` and `{}` are about the same bits", other.text, word.text)
                };
                return Err(word.fault(message));
            }
            self.require(word, field, value, mask)?;
            bits.add_bits(field, own);
        }
        self.constrained.push((word, bits));
        Ok(())
    }

    /// Rejects a condition that no packet can satisfy.
    fn check_sense(&self, fields: &[FieldWord<'a>]) -> Parsed<()> {
        let (key, mask) = (self.condition.key(), self.condition.mask());
        let word_of = |is_field: &dyn Fn(Field) -> bool| {
            let found = fields.iter().find(|given| is_field(given.name.field));
            found.map_or(TextSlice::new(""), |given| given.word)
        };
        let tci = key.get(Field::VlanTci);
        if mask.get(Field::VlanTci) & TAGGED != 0 && tci & TAGGED == 0 && tci != 0 {
            let word = word_of(&|field| field == Field::VlanTci);
            return Err(word.fault(format!(
                "`{}` matches no packet: bit 0x1000, which every tag has, is 0, and others are not",
                word.text
            )));
        }
        // Later fragments have no transport header.
        let later = key.get(Field::IpFrag) & 2 != 0;
        let transport = |field: Field| field.word() >= Field::TpSrc.word() && key.get(field) != 0;
        if later && fields.iter().any(|given| transport(given.name.field)) {
            let word = word_of(&transport);
            return Err(word.fault(format!(
                "`{}` matches no packet: later fragments have no transport header",
                word.text
            )));
        }
        Ok(())
    }
}

/// Maps a name of an IP field to an ARP field if the match is on ARP.
fn as_arp(name: &'static Name, packet_kind: &PacketKind) -> &'static Name {
    if !packet_kind.meets(Prerequisite::Arp) {
        return name;
    }
    let field = match name.field {
        Field::Ip4Src => Field::ArpSpa,
        Field::Ip4Dst => Field::ArpTpa,
        Field::IpProto => Field::ArpOp,
        _ => return name,
    };
    names::of_field(field, Prerequisite::Arp).unwrap_or(name)
}

/// The prerequisite of a name in a match. A tag field has none, because a match on it implies a
/// tagged frame.
fn needs_of_match(name: &Name) -> Prerequisite {
    if name.prerequisite == Prerequisite::Vlan { Prerequisite::Nothing } else { name.prerequisite }
}

fn needs_in_match(name: &Name) -> String {
    match name.field {
        Field::Ip4Src | Field::Ip4Dst => {
            format!("{}, `arp` or `rarp`", name.prerequisite.requirement().ofctl)
        }
        Field::IpProto => "`ip`, `ipv6`, `arp` or `rarp`".to_owned(),
        _ => name.prerequisite.requirement().ofctl.to_owned(),
    }
}

/// The tests that a word adds to the match: field, value, mask, and the bits of the mask that no
/// other word may constrain.
fn required(name: &Name, masked: MaskedValue) -> Vec<(Field, u128, u128, u128)> {
    let MaskedValue { value, mask } = masked;
    let field = name.field;
    match name.syntax {
        OfctlSyntax::TunnelOption(slot) => {
            let present = 1u128 << slot;
            vec![(field, value, mask, mask), (Field::TunMetadataPresent, present, present, present)]
        }
        _ if mask == 0 => Vec::new(),
        OfctlSyntax::Tos => vec![(field, value >> name.missing_low_bits, u128::MAX, u128::MAX)],
        OfctlSyntax::DlVlan if value == 0xffff => vec![(field, 0, u128::MAX, u128::MAX)],
        OfctlSyntax::DlVlan => vec![(field, value | TAGGED, VID | TAGGED, VID)],
        OfctlSyntax::VlanVid => vec![(field, value, mask, mask & VID)],
        OfctlSyntax::VlanPcp => vec![(field, value << 13 | TAGGED, PCP | TAGGED, PCP)],
        // The field in the key can be wider than its value in the text, so all its bits are tested.
        _ if !name.maskable => vec![(field, value, u128::MAX, u128::MAX)],
        _ => vec![(field, value, mask, mask)],
    }
}

/// An error about an unknown word.
pub(super) fn unknown_word(word: TextSlice<'_>, others: &[&'static str]) -> super::text::TextError {
    if word.text == "conj_id" {
        return word.fault(
            "`conj_id` is not supported: conjunctions are not, write one flow for each combination",
        );
    }
    if names::is_foreign(word.text) {
        return word.fault(format!("the field `{}` of Open vSwitch is not supported", word.text));
    }
    let shown = names::all().filter(|name| name.is_shown()).map(|name| name.shown);
    let known = names::all().map(|name| name.name).chain(shown);
    let words = SHORTHANDS.iter().map(|(name, ..)| *name).chain(others.iter().copied());
    let near = suggestion(word.text, known.chain(words));
    word.fault(format!("unknown word `{}`{near}", Shortened(word.text)))
}

/// The canonical text of a condition; empty if it matches every packet.
pub(super) fn text(condition: &Match) -> String {
    let mut out = String::new();
    let packet_kind = PacketKind::of(condition);
    // The most specific shorthands come last in the table, so it is searched from the end.
    let shorthand = SHORTHANDS.iter().rev().find(|&&(_, ethertype, protocol)| {
        packet_kind.ethertype == Some(ethertype)
            && (protocol.is_none() || protocol == packet_kind.protocol)
    });
    let is_before = |name: &Name| names::BEFORE_KIND.contains(&name.field);
    let shown = |before: bool| {
        names::all().filter(move |name| name.is_shown() && is_before(name) == before)
    };
    for name in shown(true) {
        let masked = MaskedValue {
            value: condition.key().get(name.field),
            mask: condition.mask().get(name.field),
        };
        show_field(&mut out, condition, name, masked);
    }
    if let Some((name, ..)) = shorthand {
        push(&mut out, name);
    }
    for name in shown(false) {
        let masked = MaskedValue {
            value: condition.key().get(name.field),
            mask: condition.mask().get(name.field),
        };
        match (name.field, shorthand) {
            (Field::EthType, Some(_)) | (Field::IpProto, Some((_, _, Some(_)))) => {}
            (Field::VlanTci, _) => show_tag(&mut out, name, masked),
            _ => show_field(&mut out, condition, name, masked),
        }
    }
    out
}

fn show_field(out: &mut String, condition: &Match, name: &Name, masked: MaskedValue) {
    let MaskedValue { value, mask } = masked;
    if let OfctlSyntax::TunnelOption(slot) = name.syntax {
        if condition.mask().get(Field::TunMetadataPresent) >> slot & 1 == 0 {
            return;
        }
        if mask == 0 {
            return push(out, name.shown);
        }
    }
    if mask == 0 {
        return;
    }
    let masked = MaskedValue {
        value: value << name.missing_low_bits,
        mask: if mask == name.field.all_ones() {
            low_bits(name.width)
        } else {
            mask << name.missing_low_bits
        },
    };
    push(out, name.shown);
    // Writing to a string cannot fail.
    let _ = write!(out, "={}", DisplayValue { name, masked });
}

/// Prints `dl_vlan` and `dl_vlan_pcp` if they express the whole test.
fn show_tag(out: &mut String, name: &Name, masked: MaskedValue) {
    let MaskedValue { value, mask } = masked;
    let (vid, pcp) = (mask & VID, mask & PCP);
    let whole = [0, VID].contains(&vid) && [0, PCP].contains(&pcp) && mask & !TAGGED != 0;
    if mask & value & TAGGED != 0 && whole {
        if vid != 0 {
            push(out, "dl_vlan");
            let _ = write!(out, "={}", value & VID);
        }
        if pcp != 0 {
            push(out, "dl_vlan_pcp");
            let _ = write!(out, "={}", value >> 13);
        }
    } else if mask != 0 {
        push(out, name.shown);
        let _ = write!(out, "={}", DisplayValue { name, masked });
    }
}

fn push(out: &mut String, word: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(word);
}
