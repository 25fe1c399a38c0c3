//! Compiles the actions of a flow to steps and to the canonical text.

use super::names::PacketKind;
use super::ports::{Ports, ReservedPort, Shortened};
use super::text::{Item, Items, Parsed, TextError, TextSlice, Value};
use super::value;
use flow::PortNo;
use pipeline::suggestion;
use pipeline::{Op, TableId};
use std::sync::Arc;

/// The limit on nested `clone` actions.
const MAX_CLONES: usize = 16;

/// The supported actions.
const NAMES: &[&str] = &[
    "output",
    "in_port",
    "flood",
    "all",
    "normal",
    "controller",
    "drop",
    "set_field",
    "load",
    "move",
    "push",
    "pop",
    "mod_vlan_vid",
    "mod_vlan_pcp",
    "mod_dl_src",
    "mod_dl_dst",
    "mod_nw_src",
    "mod_nw_dst",
    "mod_nw_tos",
    "mod_nw_ecn",
    "mod_nw_ttl",
    "mod_tp_src",
    "mod_tp_dst",
    "push_vlan",
    "pop_vlan",
    "strip_vlan",
    "dec_ttl",
    "resubmit",
    "goto_table",
    "clone",
    "set_queue",
    "pop_queue",
    "set_tunnel",
    "set_tunnel64",
    "check_pkt_larger",
    "write_metadata",
    "note",
    "ct",
    "ct_clear",
];

/// Actions of Open vSwitch that are not supported, each with the reason or a replacement.
const FOREIGN: &[(&str, &str)] = &[
    ("nat", "use `ct(nat)`"),
    ("conjunction", "write one flow for each combination"),
    ("learn", "`normal` learns MAC addresses"),
    ("group", "there are no groups"),
    ("meter", "there are no meters"),
    ("bundle", ""),
    ("bundle_load", ""),
    ("multipath", ""),
    ("enqueue", "use `set_queue` and `output`"),
    ("exit", ""),
    ("fin_timeout", ""),
    ("sample", ""),
    ("delete_field", ""),
    ("encap", ""),
    ("decap", ""),
    ("dec_nsh_ttl", ""),
    ("push_mpls", "there is no MPLS"),
    ("pop_mpls", "there is no MPLS"),
    ("set_mpls_label", "there is no MPLS"),
    ("set_mpls_tc", "there is no MPLS"),
    ("set_mpls_ttl", "there is no MPLS"),
    ("dec_mpls_ttl", "there is no MPLS"),
    ("write_actions", "there is no action set"),
    ("clear_actions", "there is no action set"),
    ("apply_actions", "write the actions themselves"),
    ("set_vlan_vid", "use `mod_vlan_vid` or `set_field`"),
    ("set_vlan_pcp", "use `mod_vlan_pcp` or `set_field`"),
];

/// The state of the parser of actions.
pub(super) struct ActionParser<'c> {
    pub ports: &'c Ports,
    table: TableId,
    /// The known properties of the packet after the actions so far.
    pub packet_kind: PacketKind,
    pub ops: Vec<Op>,
    pub text: String,
    depth: usize,
    /// True inside `exec` of `ct`, where only mark and label of the connection are writable.
    pub in_exec: bool,
    /// The last OpenFlow instruction. Only instructions that OpenFlow orders after it may follow.
    last: Option<&'static str>,
}

impl<'c> ActionParser<'c> {
    /// Parses the actions of a flow in `table` whose match selects `packet_kind`. Returns the steps
    /// and the canonical text.
    pub fn parse(
        text: TextSlice<'_>,
        ports: &'c Ports,
        table: TableId,
        packet_kind: PacketKind,
    ) -> Parsed<(Arc<[Op]>, String)> {
        let mut actions = Self {
            ports,
            table,
            packet_kind,
            ops: Vec::new(),
            text: String::new(),
            depth: 0,
            in_exec: false,
            last: None,
        };
        actions.list(text)?;
        Ok((actions.ops.into(), actions.text))
    }

    /// A parser for the actions inside `exec` of a `ct` action.
    pub fn for_exec(&self) -> Self {
        Self {
            ports: self.ports,
            table: self.table,
            packet_kind: self.packet_kind,
            ops: Vec::new(),
            text: String::new(),
            depth: self.depth,
            in_exec: true,
            last: None,
        }
    }

    fn list(&mut self, text: TextSlice<'_>) -> Parsed<()> {
        let mut dropped = None;
        for (place, item) in Items::new(text).enumerate() {
            let item = item?;
            let word = item.word;
            let name = word.text.to_ascii_lowercase();
            let drop = name == "drop";
            if let Some(alone) = dropped.or(Some(word).filter(|_| drop && place > 0)) {
                return Err(alone.fault("`drop` must be the only action"));
            }
            if drop {
                item.no_operand()?;
                dropped = Some(word);
                continue;
            }
            self.check_order(word, &name)?;
            self.action(item, &name)?;
        }
        if self.text.is_empty() {
            self.ops.push(Op::Drop);
            self.append_text(format_args!("drop"));
        }
        Ok(())
    }

    /// Checks that OpenFlow instructions follow the actions, in the order `write_metadata`,
    /// `goto_table`.
    fn check_order(&mut self, word: TextSlice<'_>, name: &str) -> Parsed<()> {
        let instruction = match name {
            "write_metadata" => Some("write_metadata"),
            "goto_table" => Some("goto_table"),
            _ => None,
        };
        match (self.last, instruction) {
            (Some("write_metadata"), Some("goto_table")) | (None, _) => {}
            (Some(last), Some(now)) if now == last => {
                return Err(word.fault(format!("duplicate `{now}`")));
            }
            (Some("goto_table"), _) => {
                return Err(word.fault("nothing may follow `goto_table`"));
            }
            (Some(last), _) => {
                return Err(word.fault(format!("only `goto_table` may follow `{last}`")));
            }
        }
        if let (Some(now), true) = (instruction, self.depth > 0) {
            return Err(word.fault(format!("`{now}` cannot be inside `clone`")));
        }
        self.last = instruction.or(self.last);
        Ok(())
    }

    fn action(&mut self, item: Item<'_>, name: &str) -> Parsed<()> {
        match name {
            "output" => self.output(item.operand("a port, or bits of a field")?),
            "in_port" | "flood" | "all" | "normal" => {
                item.no_operand()?;
                self.reserved(item.word)
            }
            "controller" => self.controller(item),
            "set_field" => self.set_field(item),
            "load" => self.load(item),
            "move" => self.copy(item),
            "push" => self.push(item),
            "pop" => self.pop(item),
            "mod_vlan_vid" => self.modify_tag(item, "mod_vlan_vid", "vlan_vid"),
            "mod_vlan_pcp" => self.modify_tag(item, "mod_vlan_pcp", "dl_vlan_pcp"),
            "mod_dl_src" => self.modify(item, "mod_dl_src", "eth_src"),
            "mod_dl_dst" => self.modify(item, "mod_dl_dst", "eth_dst"),
            "mod_nw_src" => self.modify(item, "mod_nw_src", "ip_src"),
            "mod_nw_dst" => self.modify(item, "mod_nw_dst", "ip_dst"),
            "mod_nw_tos" => self.modify(item, "mod_nw_tos", "nw_tos"),
            "mod_nw_ecn" => self.modify(item, "mod_nw_ecn", "nw_ecn"),
            "mod_nw_ttl" => self.modify(item, "mod_nw_ttl", "nw_ttl"),
            "mod_tp_src" => self.modify(item, "mod_tp_src", "tp_src"),
            "mod_tp_dst" => self.modify(item, "mod_tp_dst", "tp_dst"),
            "set_tunnel" => self.modify(item, "set_tunnel", "tun_id"),
            "set_tunnel64" => self.modify(item, "set_tunnel64", "tun_id"),
            "push_vlan" => self.push_vlan(item),
            "pop_vlan" | "strip_vlan" => {
                item.no_operand()?;
                self.ops.push(Op::PopVlan);
                self.packet_kind.tagged = false;
                self.append_text(format_args!("pop_vlan"));
                Ok(())
            }
            "dec_ttl" => self.dec_ttl(item),
            "resubmit" => self.resubmit(item),
            "goto_table" => self.goto_table(item),
            "clone" => self.clone_packet(item),
            "set_queue" | "pop_queue" => self.set_queue(item, name),
            "check_pkt_larger" => self.check_length(item),
            "write_metadata" => self.write_metadata(item),
            "note" => self.note(item),
            "ct" => self.ct(item),
            "ct_clear" => {
                item.no_operand()?;
                self.ops.push(Op::CtClear);
                self.append_text(format_args!("ct_clear"));
                Ok(())
            }
            _ => self.bare_port(item, name),
        }
    }

    /// Parses a port without `output:`. Any other word is an error.
    fn bare_port(&mut self, item: Item<'_>, name: &str) -> Parsed<()> {
        let word = item.word;
        if let Some((_, why)) = FOREIGN.iter().find(|(foreign, _)| *foreign == name) {
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            return Err(word.fault(format!("the action `{name}` is not supported{why}")));
        }
        let number = word.text.starts_with(|c: char| c.is_ascii_digit());
        let known = number || ReservedPort::from_name(name).is_some();
        if known || self.ports.find(word.text).is_some() {
            item.no_operand()?;
            return self.output(word);
        }
        let near = suggestion(name, NAMES.iter().copied());
        Err(word.fault(format!("unknown action or port `{}`{near}", Shortened(word.text))))
    }

    /// `output:port`, where the port is a number, a name, a reserved port, or a field that holds
    /// the number.
    fn output(&mut self, operand: TextSlice<'_>) -> Parsed<()> {
        if ReservedPort::from_name(operand.text).is_some() {
            return self.reserved(operand);
        }
        if operand.text.starts_with("port=") || operand.text.starts_with("group=") {
            return Err(
                operand.fault("`output` with options is not supported: frames are not truncated")
            );
        }
        let a_port = operand.text.starts_with(|c: char| c.is_ascii_digit())
            || self.ports.find(operand.text).is_some();
        let word = operand.split_once("[").map_or(operand, |(word, _)| word);
        if a_port || super::names::find(word.text).is_none() {
            let port = self.ports.parse(operand)?;
            self.ops.push(Op::OutputPort(port));
            self.append_text(format_args!("output:{port}"));
        } else {
            let bits = self.source(operand)?;
            self.ops.push(Op::OutputField(bits.bits));
            self.append_text(format_args!("output:{bits}"));
        }
        Ok(())
    }

    fn reserved(&mut self, word: TextSlice<'_>) -> Parsed<()> {
        let (op, text) = match ReservedPort::from_name(word.text) {
            Some(ReservedPort::InPort) => (Op::OutputInPort, "IN_PORT"),
            Some(ReservedPort::Flood) => (Op::Flood, "FLOOD"),
            // weft has no ports that are excluded from flooding, so `ALL` and `FLOOD` are equal.
            Some(ReservedPort::All) => (Op::Flood, "ALL"),
            Some(ReservedPort::Normal) => (Op::Normal, "NORMAL"),
            Some(ReservedPort::Controller) => (Op::Controller, "CONTROLLER:65535"),
            _ => return Err(self.ports.unknown(word)),
        };
        self.ops.push(op);
        self.append_text(format_args!("{text}"));
        Ok(())
    }

    /// `controller`, `controller:bytes`, `controller(key=value,...)`. weft has no controller that
    /// reads the options; they are checked and kept in the canonical text.
    fn controller(&mut self, item: Item<'_>) -> Parsed<()> {
        self.ops.push(Op::Controller);
        let options = match item.value {
            Value::None => return self.finish_controller(65535),
            Value::Plain(bytes) => {
                return self.finish_controller(value::number_of(bytes, 16)? as u16);
            }
            Value::Braced(options, None) => options,
            Value::Braced(_, Some(target)) => {
                return Err(target.fault("`controller` takes no `->`"));
            }
        };
        let mut bytes = 65535;
        let mut others = Vec::new();
        for option in Items::new(options) {
            let option = option?;
            let operand = || option.operand("a value");
            match option.word.text {
                "max_len" => bytes = value::number_of(operand()?, 16)? as u16,
                "id" => others.push(format!("id={}", value::number_of(operand()?, 16)?)),
                "reason" => match operand()?.text {
                    "action" => {}
                    text @ ("no_match" | "invalid_ttl" | "action_set" | "group" | "packet_out") => {
                        others.push(format!("reason={text}"));
                    }
                    _ => return Err(operand()?.expected("`action`, `no_match` or `invalid_ttl`")),
                },
                "userdata" => others.push(format!("userdata={}", hex_bytes(operand()?)?)),
                "pause" | "meter_id" => {
                    return Err(option.word.fault(format!(
                        "`{}` of `controller` is not supported",
                        option.word.text
                    )));
                }
                other => {
                    let names = ["max_len", "id", "reason", "userdata"];
                    let near = suggestion(other, names.into_iter());
                    return Err(option.word.fault(format!(
                        "`controller` has no option `{}`{near}",
                        Shortened(other)
                    )));
                }
            }
        }
        if others.is_empty() {
            return self.finish_controller(bytes);
        }
        let max_len = if bytes == 65535 { String::new() } else { format!("max_len={bytes},") };
        self.append_text(format_args!("controller({max_len}{})", others.join(",")));
        Ok(())
    }

    fn finish_controller(&mut self, bytes: u16) -> Parsed<()> {
        self.append_text(format_args!("CONTROLLER:{bytes}"));
        Ok(())
    }

    fn push_vlan(&mut self, item: Item<'_>) -> Parsed<()> {
        let operand = item.operand("0x8100, 0x88a8 or 0x9100")?;
        let tpid = match value::number(operand)? {
            tpid @ (0x8100 | 0x88a8 | 0x9100) => tpid as u16,
            _ => return Err(operand.expected("0x8100, 0x88a8 or 0x9100")),
        };
        self.ops.push(Op::PushVlan { tpid });
        self.packet_kind.tagged = true;
        self.append_text(format_args!("push_vlan:{tpid:#x}"));
        Ok(())
    }

    /// `dec_ttl` or `dec_ttl(id,id...)`. The IDs select controllers that are notified of an expired
    /// TTL. weft has no controllers.
    fn dec_ttl(&mut self, item: Item<'_>) -> Parsed<()> {
        self.ops.push(Op::DecTtl);
        if item.value == Value::None {
            self.append_text(format_args!("dec_ttl"));
            return Ok(());
        }
        let mut ids = Vec::new();
        for id in Items::new(item.operand("numbers of controllers")?) {
            let id = id?;
            id.no_operand()?;
            ids.push(value::number_of(id.word, 16)?.to_string());
        }
        self.append_text(format_args!("dec_ttl({})", ids.join(",")));
        Ok(())
    }

    /// `resubmit:port`, `resubmit(port)`, `resubmit(port,table)` and `resubmit(,table)`.
    fn resubmit(&mut self, item: Item<'_>) -> Parsed<()> {
        const FORMS: &str = "`resubmit:port`, `resubmit(port,table)` or `resubmit(,table)`";
        let (port_text, table_text) = match item.value {
            Value::Plain(port) => (port, None),
            Value::Braced(inside, None) => match inside.split_once(",") {
                Some((port, table)) => (port.trim(), Some(table.trim())),
                None => (inside.trim(), None),
            },
            _ => return Err(TextError::new(item.word.end(), format!("expected {FORMS}"))),
        };
        if let Some(text) = table_text.filter(|text| text.text.contains(',')) {
            return Err(text.fault("`resubmit` with `ct` is not supported"));
        }
        let table = match table_text.filter(|text| !text.is_empty()) {
            Some(text) => Some(table(text)?),
            None => None,
        };
        let port = match ReservedPort::from_name(port_text.text) {
            _ if port_text.is_empty() && table.is_none() => {
                return Err(port_text.expected(FORMS));
            }
            _ if port_text.is_empty() => None,
            Some(ReservedPort::InPort) => None,
            _ => Some(self.ports.parse(port_text)?),
        };
        self.ops.push(match port {
            Some(in_port) => Op::Resubmit { in_port, table },
            None => Op::Next(table.unwrap_or(self.table)),
        });
        let port = port.map_or_else(String::new, |PortNo(number)| number.to_string());
        match table {
            Some(table) => self.append_text(format_args!("resubmit({port},{table})")),
            None if port.is_empty() => self.append_text(format_args!("resubmit:IN_PORT")),
            None => self.append_text(format_args!("resubmit:{port}")),
        }
        Ok(())
    }

    fn goto_table(&mut self, item: Item<'_>) -> Parsed<()> {
        let operand = item.operand("a table")?;
        let next = table(operand)?;
        if next <= self.table {
            return Err(operand.fault(format!(
                "`goto_table` goes forward only: from table {} to {} or a later one",
                self.table,
                self.table.index() + 1
            )));
        }
        self.ops.push(Op::Next(next));
        self.append_text(format_args!("goto_table:{next}"));
        Ok(())
    }

    fn clone_packet(&mut self, item: Item<'_>) -> Parsed<()> {
        let Value::Braced(inside, None) = item.value else {
            return Err(TextError::new(item.word.end(), "expected `clone(actions)`"));
        };
        if self.depth == MAX_CLONES {
            return Err(item.word.fault(format!("`clone` is nested more than {MAX_CLONES} deep")));
        }
        let mut inner = ActionParser {
            ports: self.ports,
            table: self.table,
            packet_kind: self.packet_kind,
            ops: Vec::new(),
            text: String::new(),
            depth: self.depth + 1,
            in_exec: false,
            last: None,
        };
        inner.list(inside)?;
        self.ops.push(Op::Clone(inner.ops.into()));
        self.append_text(format_args!("clone({})", inner.text));
        Ok(())
    }

    fn set_queue(&mut self, item: Item<'_>, name: &str) -> Parsed<()> {
        if name == "pop_queue" {
            item.no_operand()?;
            self.ops.push(Op::SetQueue(0));
            self.append_text(format_args!("pop_queue"));
            return Ok(());
        }
        let queue = value::number_of(item.operand("a queue")?, 32)?;
        // The cast is lossless: the number has at most 32 bits.
        self.ops.push(Op::SetQueue(queue as u32));
        self.append_text(format_args!("set_queue:{queue}"));
        Ok(())
    }

    /// `check_pkt_larger(bytes)->field[bit]`.
    fn check_length(&mut self, item: Item<'_>) -> Parsed<()> {
        let Value::Braced(bytes_text, Some(target)) = item.value else {
            return Err(TextError::new(
                item.word.end(),
                "expected `check_pkt_larger(bytes)->field[bit]`",
            ));
        };
        let bytes = value::number_of(bytes_text, 16)? as u16;
        let to = self.target(target)?;
        if to.bits.width() != 1 {
            return Err(target.expected("one bit of a field"));
        }
        self.ops.push(Op::CheckLength { to: to.bits, bytes });
        self.append_text(format_args!("check_pkt_larger({bytes})->{to}"));
        Ok(())
    }

    /// `note` has no effect.
    fn note(&mut self, item: Item<'_>) -> Parsed<()> {
        let bytes = match item.value {
            Value::Plain(bytes) => bytes,
            _ => {
                return Err(TextError::new(
                    item.word.end(),
                    "expected `note:` and bytes like `00.11.22`",
                ));
            }
        };
        let bytes = hex_bytes(bytes)?;
        self.append_text(format_args!("note:{bytes}"));
        Ok(())
    }
}

/// A table, 0 to 254.
pub(super) fn table(text: TextSlice<'_>) -> Parsed<TableId> {
    let number = value::number(text)?;
    let table = u8::try_from(number).ok().and_then(TableId::bridge);
    table.ok_or_else(|| text.expected("a table from 0 to 254"))
}

/// Bytes as pairs of hexadecimal digits, optionally separated by dots. Returns them with dots.
fn hex_bytes(text: TextSlice<'_>) -> Parsed<String> {
    let mut bytes = Vec::new();
    let mut rest = text.text;
    while !rest.is_empty() {
        let byte = rest.get(..2).filter(|byte| byte.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(byte) = byte else {
            return Err(TextError::new(text.end() - rest.len(), "expected two hexadecimal digits"));
        };
        bytes.push(byte.to_ascii_lowercase());
        rest = rest.get(2..).unwrap_or_default();
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    Ok(bytes.join("."))
}
