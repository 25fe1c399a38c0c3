//! Parses the actions of connection tracking: `ct(...)` and `ct_clear`.

use super::actions::{ActionParser, table};
use super::names::{IPV4, IPV6};
use super::ports::Shortened;
use super::set::Bits;
use super::text::{Item, Items, Parsed, TextError, TextSlice, Value};
use super::value;
use flow::{CtNat, NatRange};
use pipeline::{CtOp, CtZone, Op, TableId, suggestion};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

/// The arguments of `ct`.
const ARGUMENTS: [&str; 7] = ["commit", "force", "table", "zone", "nat", "exec", "alg"];

/// The arguments of one `ct` action that have been parsed so far.
#[derive(Default)]
struct CtArguments {
    commits: bool,
    force: bool,
    table: Option<TableId>,
    zone: Option<(CtZone, String)>,
    nat: Option<CtNat>,
    /// Steps that write mark and label, and their canonical text.
    exec: Option<(Arc<[Op]>, String)>,
}

impl CtArguments {
    /// The canonical text, in the order of ovs-ofctl. Zone 0 is omitted, because it is the default.
    fn text(&self) -> String {
        let mut words = Vec::new();
        if self.commits {
            words.push("commit".to_owned());
        }
        if self.force {
            words.push("force".to_owned());
        }
        words.extend(self.table.map(|table| format!("table={table}")));
        match &self.zone {
            None | Some((CtZone::Number(0), _)) => {}
            Some((_, text)) => words.push(format!("zone={text}")),
        }
        words.extend(self.nat.map(|nat| nat_text(&nat)));
        words.extend(self.exec.as_ref().map(|(_, text)| format!("exec({text})")));
        format!("ct({})", words.join(","))
    }
}

impl ActionParser<'_> {
    /// `ct(argument,...)`.
    pub fn ct(&mut self, item: Item<'_>) -> Parsed<()> {
        let inside = match item.value {
            Value::None => item.word.slice(0, 0),
            Value::Plain(text) | Value::Braced(text, None) => text,
            Value::Braced(_, Some(target)) => return Err(target.fault("`ct` takes no `->`")),
        };
        if !matches!(self.packet_kind.ethertype, Some(IPV4 | IPV6)) {
            return Err(item.word.fault("`ct` needs `ip` or `ipv6` in the match"));
        }
        let mut arguments = CtArguments::default();
        let mut words: Vec<&str> = Vec::new();
        for argument in Items::new(inside) {
            let argument = argument?;
            let word = argument.word;
            if words.contains(&word.text) {
                return Err(word.fault(format!("duplicate `{}`", word.text)));
            }
            words.push(word.text);
            self.ct_argument(argument, &mut arguments)?;
        }
        let CtArguments { commits, force, table, ref zone, nat, ref exec } = arguments;
        if force && !commits {
            return Err(inside.fault("`force` needs `commit`"));
        }
        let changes = exec.is_some() || nat.is_some_and(|nat| nat != CtNat::Existing);
        if changes && !commits {
            return Err(inside.fault("`exec`, and `nat` with arguments, need `commit`"));
        }
        let steps = || exec.as_ref().map_or_else(|| Arc::from([]), |(ops, _)| Arc::clone(ops));
        self.ops.push(Op::Ct(Box::new(CtOp {
            zone: zone.as_ref().map_or(CtZone::Number(0), |(zone, _)| *zone),
            nat,
            commit: commits.then(steps),
            force,
            next: table,
        })));
        self.append_text(format_args!("{}", arguments.text()));
        Ok(())
    }

    fn ct_argument(&mut self, argument: Item<'_>, into: &mut CtArguments) -> Parsed<()> {
        let word = argument.word;
        match word.text {
            "commit" => {
                argument.no_operand()?;
                into.commits = true;
            }
            "table" => into.table = Some(table(argument.operand("a table")?)?),
            "zone" => into.zone = Some(self.ct_zone(argument.operand("a zone")?)?),
            "nat" => into.nat = Some(self.ct_nat(argument)?),
            "exec" => into.exec = Some(self.ct_exec(argument)?),
            "force" => {
                argument.no_operand()?;
                into.force = true;
            }
            "alg" => {
                return Err(word.fault(
                    "`alg` of `ct` is not supported: weft does not follow connections that a \
                     payload announces",
                ));
            }
            other => {
                let near = suggestion(other, ARGUMENTS.into_iter());
                return Err(
                    word.fault(format!("`ct` has no argument `{}`{near}", Shortened(other)))
                );
            }
        }
        Ok(())
    }

    /// A number, or 16 bits of a field.
    fn ct_zone(&self, text: TextSlice<'_>) -> Parsed<(CtZone, String)> {
        if text.text.starts_with(|c: char| c.is_ascii_digit()) {
            let zone = value::number_of(text, 16)? as u16;
            return Ok((CtZone::Number(zone), zone.to_string()));
        }
        let bits: Bits = self.source(text)?;
        if bits.bits.width() != 16 {
            return Err(text.expected("16 bits of a field, such as `reg0[0..15]`"));
        }
        Ok((CtZone::Bits(bits.bits), bits.to_string()))
    }

    /// `nat`, `nat(src=RANGE)` or `nat(dst=RANGE)`.
    fn ct_nat(&self, argument: Item<'_>) -> Parsed<CtNat> {
        let inside = match argument.value {
            Value::None => return Ok(CtNat::Existing),
            Value::Braced(inside, None) | Value::Plain(inside) => inside,
            Value::Braced(_, Some(target)) => return Err(target.fault("`nat` takes no `->`")),
        };
        let mut nat = None;
        let (mut random, mut persistent) = (None, None);
        for option in Items::new(inside) {
            let option = option?;
            let word = option.word;
            let is_source = match word.text {
                "src" => true,
                "dst" => false,
                "random" | "persistent" => {
                    option.no_operand()?;
                    let flag = if word.text == "random" { &mut random } else { &mut persistent };
                    if flag.replace(word).is_some() {
                        return Err(word.fault(format!("duplicate `{}`", word.text)));
                    }
                    continue;
                }
                "hash" => {
                    return Err(word.fault(
                        "`hash` of `nat` is not supported: without `random`, weft prefers the \
                         port that the packet has",
                    ));
                }
                _ => return Err(word.expected("`src=` or `dst=`")),
            };
            if nat.is_some() {
                return Err(word.fault("`nat` takes only one of `src` and `dst`"));
            }
            let text = option.operand("an address, or a range like `10.0.0.1-10.0.0.9:1000-2000`");
            nat = Some((is_source, self.nat_range(text?, is_source)?));
        }
        let Some((is_source, range)) = nat else {
            return match random.or(persistent) {
                None => Ok(CtNat::Existing),
                Some(word) => {
                    Err(word.fault(format!("`{}` of `nat` needs `src` or `dst`", word.text)))
                }
            };
        };
        let (random, persistent) = (random.is_some(), persistent.is_some());
        let range = NatRange { random, persistent, ..range };
        Ok(if is_source { CtNat::Source(range) } else { CtNat::Destination(range) })
    }

    /// Parses `address` or `address-address`, optionally followed by `:port` or `:port-port`. IPv6
    /// addresses are in brackets if a port follows. The source address 0 keeps the address, and
    /// changes the port only if it must.
    fn nat_range(&self, text: TextSlice<'_>, is_source: bool) -> Parsed<NatRange> {
        let (addresses, ports) = split_ports(text);
        let (first_text, last_text) = addresses.split_once("-").unwrap_or((addresses, addresses));
        let (first, last) = (address(first_text)?, address(last_text)?);
        if first.is_ipv6() != last.is_ipv6() || first > last {
            return Err(addresses.fault(format!("`{}` is not a range", Shortened(addresses.text))));
        }
        if first.is_unspecified() && (!is_source || last != first) {
            return Err(addresses.fault("only a source may be 0, and not in a range"));
        }
        let kind = if first.is_ipv6() { (IPV6, "ipv6") } else { (IPV4, "ip") };
        if self.packet_kind.ethertype != Some(kind.0) {
            return Err(addresses.fault(format!("this address needs `{}` in the match", kind.1)));
        }
        let ports = match ports {
            None => None,
            Some(text) => {
                let (low, high) = text.split_once("-").unwrap_or((text, text));
                let low = value::number_of(low, 16)? as u16;
                let high = value::number_of(high, 16)? as u16;
                if low == 0 || low > high {
                    return Err(text.expected("a port from 1 to 65535, or a range of ports"));
                }
                Some((low, high))
            }
        };
        Ok(NatRange { last, ports, ..NatRange::address(first) })
    }

    /// `exec(actions)`: `set_field`, `load` and `move` to `ct_mark` and `ct_label`.
    fn ct_exec(&self, argument: Item<'_>) -> Parsed<(Arc<[Op]>, String)> {
        let Value::Braced(inside, None) = argument.value else {
            return Err(TextError::new(argument.word.end(), "expected `exec(actions)`"));
        };
        let mut parser = self.for_exec();
        let mut is_empty = true;
        for item in Items::new(inside) {
            let item = item?;
            is_empty = false;
            match item.word.text.to_ascii_lowercase().as_str() {
                "set_field" => parser.set_field(item)?,
                "load" => parser.load(item)?,
                "move" => parser.copy(item)?,
                _ => {
                    return Err(item.word.fault(format!(
                        "`{}` cannot be inside `exec`: it sets `ct_mark` and `ct_label` by \
                         `set_field`, `load` and `move`",
                        Shortened(item.word.text)
                    )));
                }
            }
        }
        if is_empty {
            return Err(argument.word.fault("`exec` has no actions"));
        }
        Ok((parser.ops.into(), parser.text))
    }
}

/// The addresses of a range, and its ports if there are any.
fn split_ports(text: TextSlice<'_>) -> (TextSlice<'_>, Option<TextSlice<'_>>) {
    let colon = if text.text.starts_with('[') {
        text.text.rfind("]:").map(|at| at + 1)
    } else if text.text.matches(':').count() == 1 {
        text.text.find(':')
    } else {
        None
    };
    match colon {
        Some(at) => (text.slice(0, at), Some(text.slice(at + 1, text.text.len()))),
        None => (text, None),
    }
}

/// An address, an IPv6 address in brackets or not.
fn address(text: TextSlice<'_>) -> Parsed<IpAddr> {
    let bare = text.text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse().map(IpAddr::V6).ok(),
        None => text.text.parse().ok(),
    }
    .ok_or_else(|| text.expected("an IPv4 or IPv6 address"))
}

fn nat_text(nat: &CtNat) -> String {
    let (word, range) = match nat {
        CtNat::Existing => return "nat".to_owned(),
        CtNat::Source(range) => ("src", range),
        CtNat::Destination(range) => ("dst", range),
    };
    let address = |address: IpAddr| match address {
        IpAddr::V6(address) if range.ports.is_some() => format!("[{address}]"),
        address => address.to_string(),
    };
    let mut text = format!("nat({word}={}", address(range.first));
    // Writing to a string cannot fail.
    let _ = match range.last == range.first {
        true => Ok(()),
        false => write!(text, "-{}", address(range.last)),
    };
    let _ = match range.ports {
        None => Ok(()),
        Some((low, high)) if low == high => write!(text, ":{low}"),
        Some((low, high)) => write!(text, ":{low}-{high}"),
    };
    for (flag, word) in [(range.persistent, ",persistent"), (range.random, ",random")] {
        if flag {
            text += word;
        }
    }
    text + ")"
}
