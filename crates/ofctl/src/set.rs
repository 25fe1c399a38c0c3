//! Parses actions that read and write fields: `set_field`, `load`, `move`, `push`, `pop`, and the
//! `mod_` family.

use super::actions::ActionParser;
use super::names::{self, Name, PacketKind};
use super::ports::Shortened;
use super::text::{Item, Parsed, TextSlice};
use super::value::{self, DisplayValue, MaskedValue};
use flow::{Access, Field, OfctlSyntax, Prerequisite, Subfield, low_bits};
use pipeline::Op;
use pipeline::suggestion;
use std::fmt::{self, Write};

/// A range of bits of a named field.
#[derive(Clone, Copy)]
pub(super) struct Bits {
    name: &'static Name,
    first: u8,
    width: u8,
    pub bits: Subfield,
}

/// `name[]`, `name[bit]` or `name[first..last]`.
impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.name)?;
        match self.width {
            width if width == self.name.width => f.write_str("[]"),
            1 => write!(f, "[{}]", self.first),
            width => write!(f, "[{}..{}]", self.first, self.first + width - 1),
        }
    }
}

impl Bits {
    fn whole(name: &'static Name) -> Option<Self> {
        let bits = name.bits(0, name.width)?;
        Some(Self { name, first: 0, width: name.width, bits })
    }
}

/// Resolves the name of a field in an action. An ambiguous name depends on the packet (`tp_src` is
/// `tcp_src` for a TCP segment). A name under which Open vSwitch cannot set the field is replaced.
fn resolve_name(name: &'static Name, packet_kind: &PacketKind) -> &'static Name {
    if name.syntax == OfctlSyntax::DlVlan {
        return names::find("vlan_vid").unwrap_or(name);
    }
    let more: &[Prerequisite] = match name.prerequisite {
        Prerequisite::Ports => &[Prerequisite::Tcp, Prerequisite::Udp, Prerequisite::Sctp],
        Prerequisite::Icmp => &[Prerequisite::Icmp6],
        _ => &[],
    };
    let met = more.iter().find(|&&needs| packet_kind.meets(needs));
    met.and_then(|&needs| names::of_field(name.field, needs)).unwrap_or(name)
}

fn find(word: TextSlice<'_>, packet_kind: &PacketKind) -> Parsed<&'static Name> {
    match names::find(word.text) {
        Some(name) => Ok(resolve_name(name, packet_kind)),
        None if names::is_foreign(word.text) => {
            Err(word.fault(format!("the field `{}` of Open vSwitch is not supported", word.text)))
        }
        None => {
            let near = suggestion(word.text, names::all().map(|name| name.name));
            Err(word.fault(format!("unknown field `{}`{near}", Shortened(word.text))))
        }
    }
}

impl ActionParser<'_> {
    /// Parses the bits that an action reads: `reg0[0..15]`, `reg0[3]`, `reg0[]` or `reg0`.
    pub fn source(&self, text: TextSlice<'_>) -> Parsed<Bits> {
        let (word, range) = match text.split_once("[") {
            None => (text, None),
            Some((word, rest)) => match rest.text.strip_suffix(']') {
                Some(range) => (word, Some(rest.slice(0, range.len()))),
                None => return Err(rest.fault("missing `]`")),
            },
        };
        let name = find(word, &self.packet_kind)?;
        if !self.packet_kind.meets(name.prerequisite) {
            return Err(word.fault(format!(
                "`{}` needs {} in the match",
                word.text,
                name.prerequisite.requirement().ofctl
            )));
        }
        let (first, last) = match range {
            None => (0, name.width - 1),
            Some(range) if range.is_empty() => (0, name.width - 1),
            Some(range) => {
                let (first, last) = range.split_once("..").unwrap_or((range, range));
                let bit = |text: TextSlice<'_>| {
                    let bit = value::number(text)?;
                    let bit = u8::try_from(bit).ok().filter(|&bit| bit < name.width);
                    bit.ok_or_else(|| {
                        text.expected(format_args!("a bit from 0 to {}", name.width - 1))
                    })
                };
                (bit(first)?, bit(last)?)
            }
        };
        if first > last {
            return Err(text.fault(format!("the end of `{}` is before its start", text.text)));
        }
        let width = last - first + 1;
        let bits = name.bits(first, width).ok_or_else(|| {
            text.fault(format!(
                "the lowest {} bits of `{}` cannot be used: they are no part of the field",
                name.missing_low_bits, name.name
            ))
        })?;
        Ok(Bits { name, first, width, bits })
    }

    /// Parses the bits that an action writes, and checks that they are writable.
    pub fn target(&self, text: TextSlice<'_>) -> Parsed<Bits> {
        let target = self.source(text)?;
        self.check_target(text, target.name, target.bits.field_mask())?;
        Ok(target)
    }

    /// Checks that these bits of the field may be written.
    fn check_target(&self, word: TextSlice<'_>, name: &Name, bits: u128) -> Parsed<()> {
        match name.access {
            Access::CtCommit if self.in_exec => {}
            _ if self.in_exec => {
                return Err(word.fault(format!(
                    "`{}` cannot be set inside `exec`: only `ct_mark` and `ct_label` can",
                    name.name
                )));
            }
            Access::ReadWrite => {}
            Access::ReadOnly | Access::SwitchOnly => {
                return Err(word.fault(format!("`{}` is read-only", name.name)));
            }
            Access::CtCommit => {
                return Err(word
                    .fault(format!("`{}` can only be set by `ct(commit,exec(...))`", name.name)));
            }
            Access::Unsupported(why) => {
                return Err(word.fault(format!("`{}` cannot be set: {why}", name.name)));
            }
        }
        if name.field == Field::VlanTci {
            if bits & names::TAGGED != 0 {
                return Err(word.fault(format!(
                    "bit 12 of `{}` cannot be set: use `push_vlan` or `pop_vlan`",
                    name.name
                )));
            }
            if !self.packet_kind.tagged {
                return Err(word.fault(format!(
                    "`{}` needs {} in the match, or `push_vlan` before",
                    name.name,
                    Prerequisite::Vlan.requirement().ofctl
                )));
            }
        }
        if self.packet_kind.meets(name.prerequisite) {
            return Ok(());
        }
        Err(word.fault(format!(
            "`{}` needs {} in the match",
            name.name,
            name.prerequisite.requirement().ofctl
        )))
    }

    /// `set_field:value[/mask]->field`.
    pub fn set_field(&mut self, item: Item<'_>) -> Parsed<()> {
        let operand = item.operand("`value->field`")?;
        let Some((value_text, word)) = operand.split_once("->") else {
            return Err(operand.expected("`value->field`"));
        };
        let name = find(word, &self.packet_kind)?;
        let mut masked = name.parse(value_text, self.ports)?;
        if name.syntax == OfctlSyntax::VlanVid {
            // The match requires a tagged frame, so the bit that marks it as tagged is not written.
            masked = MaskedValue { value: masked.value & 0xfff, mask: masked.mask & 0xfff };
        }
        let whole = name.bits(name.missing_low_bits, name.width - name.missing_low_bits);
        let shift = whole.map_or(0, Subfield::first);
        let in_field =
            |bits: u128| (bits >> name.missing_low_bits << shift) & name.field.all_ones();
        self.check_target(word, name, in_field(masked.mask))?;
        if masked.mask == 0 {
            return Err(value_text.fault("the mask is 0: no bit would be set"));
        }
        self.load_masked(name.field, in_field(masked.value), in_field(masked.mask));
        let masked = match name.syntax {
            // Open vSwitch expects the bit that marks frames as tagged.
            OfctlSyntax::VlanVid if masked.mask == 0xfff => MaskedValue {
                value: masked.value | names::TAGGED,
                mask: masked.mask | names::TAGGED,
            },
            _ => masked,
        };
        self.append_text(format_args!(
            "set_field:{}->{}",
            DisplayValue { name, masked },
            name.name
        ));
        Ok(())
    }

    /// Emits one step for each run of ones in the mask.
    fn load_masked(&mut self, field: Field, value: u128, mut mask: u128) {
        while mask != 0 {
            let first = mask.trailing_zeros() as u8;
            let width = (mask >> first).trailing_ones() as u8;
            let run = low_bits(width) << first;
            if let Some(to) = Subfield::new(field, first, width) {
                self.ops.push(Op::Load { to, value: (value & run) >> first });
            }
            mask &= !run;
        }
    }

    /// `load:number->field[bits]`.
    pub fn load(&mut self, item: Item<'_>) -> Parsed<()> {
        let operand = item.operand("`number->field[bits]`")?;
        let Some((number, target)) = operand.split_once("->") else {
            return Err(operand.expected("`number->field[bits]`"));
        };
        let target = self.target(target)?;
        let value = value::number_of(number, target.width)?;
        self.ops.push(Op::Load { to: target.bits, value });
        self.append_text(format_args!("load:{value:#x}->{target}"));
        Ok(())
    }

    /// `move:field[bits]->field[bits]`.
    pub fn copy(&mut self, item: Item<'_>) -> Parsed<()> {
        let operand = item.operand("`field[bits]->field[bits]`")?;
        let Some((from, to)) = operand.split_once("->") else {
            return Err(operand.expected("`field[bits]->field[bits]`"));
        };
        let (from, to) = (self.source(from)?, self.target(to)?);
        if from.width != to.width {
            return Err(operand
                .fault(format!("`{from}` has {} bits and `{to}` has {}", from.width, to.width)));
        }
        self.ops.push(Op::Move { from: from.bits, to: to.bits });
        self.append_text(format_args!("move:{from}->{to}"));
        Ok(())
    }

    /// `push:field[bits]`.
    pub fn push(&mut self, item: Item<'_>) -> Parsed<()> {
        let bits = self.source(item.operand("`field[bits]`")?)?;
        self.ops.push(Op::Push(bits.bits));
        self.append_text(format_args!("push:{bits}"));
        Ok(())
    }

    /// `pop:field[bits]`.
    pub fn pop(&mut self, item: Item<'_>) -> Parsed<()> {
        let bits = self.target(item.operand("`field[bits]`")?)?;
        self.ops.push(Op::Pop(bits.bits));
        self.append_text(format_args!("pop:{bits}"));
        Ok(())
    }

    /// The `mod_` family and similar actions. They change packets that have the field and leave
    /// others unchanged, so the match needs no prerequisite. `name` is the field that determines
    /// the notation of the value.
    pub fn modify(&mut self, item: Item<'_>, word: &str, name: &str) -> Parsed<()> {
        let operand = item.operand("a value")?;
        let Some(name) = names::find(name) else {
            return Err(item.word.fault(format!("unknown action `{}`", item.word.text)));
        };
        let masked = name.parse(operand, self.ports)?;
        if masked.mask != low_bits(name.value_width()) {
            return Err(operand.fault(format!("`{word}` takes no mask")));
        }
        let value = masked.value >> name.missing_low_bits;
        self.ops.push(Op::Load { to: name.field.into(), value });
        self.append_text(format_args!("{word}:{}", DisplayValue { name, masked }));
        Ok(())
    }

    /// `mod_vlan_vid` and `mod_vlan_pcp`. They push a tag on an untagged frame.
    pub fn modify_tag(&mut self, item: Item<'_>, word: &str, name: &str) -> Parsed<()> {
        let operand = item.operand("a number")?;
        let bits = names::find(name).and_then(Bits::whole);
        let Some(Bits { width, bits, .. }) = bits else {
            return Err(item.word.fault(format!("unknown action `{}`", item.word.text)));
        };
        let value = value::number_of(operand, width)? as u16;
        self.ops.push(Op::SetVlan { bits, value });
        self.packet_kind.tagged = true;
        self.append_text(format_args!("{word}:{value}"));
        Ok(())
    }

    /// `write_metadata:value[/mask]`.
    pub fn write_metadata(&mut self, item: Item<'_>) -> Parsed<()> {
        let operand = item.operand("`value` or `value/mask`")?;
        let Some(name) = names::find("metadata") else { return Ok(()) };
        let masked = name.parse(operand, self.ports)?;
        self.load_masked(name.field, masked.value, masked.mask);
        self.append_text(format_args!("write_metadata:{}", DisplayValue { name, masked }));
        Ok(())
    }

    /// Appends to the canonical text.
    pub fn append_text(&mut self, action: fmt::Arguments<'_>) {
        if !self.text.is_empty() {
            self.text.push(',');
        }
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(action);
    }
}
