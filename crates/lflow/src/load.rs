//! [`Loader`]: from logical flows as text to a [`Program`], and from one program to the next when something changes.
//!
//! A logical flow is written once for all datapaths that it applies to. It is compiled once, too, and filed under that group
//! of datapaths, unless it mentions names that mean different things in different datapaths (a multicast group, a
//! port): then the group is divided by what the names mean. The loader remembers which names each flow has asked for, so
//! that a new port or a changed address set compiles just those flows again.

use super::actions::{self, Actions, Stage};
use super::expr::{self, Compiled, Expr};
use super::logical_flow::{FlowError, FlowPart, LogicalFlow};
use super::scope::Scope;
use super::token::Constant;
use ::flow::{DatapathKey, DropReason, Match, PortKey};
use pipeline::{
    Datapath, DatapathKind, Flow, FlowCounters, FlowId, FlowText, GroupId, LogicalPort,
    MulticastGroup, Op, Program, TableId,
};
use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::sync::Arc;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// See the module.
#[derive(Debug, Default)]
pub struct Loader {
    program: Program,
    names: Map<DatapathKey, Names>,
    address_sets: Map<Arc<str>, Vec<Constant>>,
    port_groups: Map<Arc<str>, Vec<String>>,
    /// Ports that are on other hosts; all others are resident here.
    elsewhere: Map<Arc<str>, ()>,
    groups: Map<Arc<[DatapathKey]>, GroupUse>,
    /// Groups without flows, to be used again.
    free_groups: Vec<GroupId>,
    flows: Map<FlowId, Loaded>,
    /// Which flows have asked for a name.
    users: Map<NameQuery, Vec<FlowId>>,
    strings: Strings,
    /// Compiled actions that mention no names.
    shared_ops: Map<(Arc<str>, TableId), Arc<[Op]>>,
    /// With how many of both it is looked which are not used any more.
    forget_at: usize,
    next: u64,
}

/// With so few texts and compiled actions it does not matter whether they are used.
const FEW_TEXTS: usize = 4096;

/// What names mean in a datapath. Where a port and a multicast group have the same, it is the port's.
#[derive(Debug, Default)]
struct Names {
    ports: Map<Arc<str>, PortKey>,
    groups: Map<Arc<str>, PortKey>,
}

impl Names {
    fn meaning(&self, name: &str) -> Option<PortKey> {
        self.ports.get(name).or_else(|| self.groups.get(name)).copied()
    }
}

/// Which of the two kinds of names.
#[derive(Clone, Copy)]
enum Named {
    Port,
    Group,
}

/// A group of datapaths that have flows in common.
#[derive(Clone, Copy, Debug)]
struct GroupUse {
    id: GroupId,
    /// Flows that are filed under it.
    flows: usize,
}

/// A flow that is in the program, or never matches. Where it is filed is not kept: to take it out, it is compiled again, with
/// the meanings that its names had when it was put in.
#[derive(Debug)]
struct Loaded {
    datapaths: Arc<[DatapathKey]>,
    /// For its texts and counters. A flow that is filed in several groups is there several times; this is the one that counts.
    flow: Arc<Flow>,
}

/// What a flow is compiled from.
#[derive(Clone, Debug)]
struct Recipe {
    table: TableId,
    priority: u16,
    text: FlowText,
}

impl From<&Flow> for Recipe {
    fn from(flow: &Flow) -> Self {
        Self { table: flow.table, priority: flow.priority, text: flow.text.clone() }
    }
}

/// Why the flows of a stage drop packets, as far as its name tells. The names are those of ovn-northd.
fn drop_reason(stage: &str) -> DropReason {
    match stage {
        "ls_in_l2_unknown" => DropReason::UnknownMac,
        _ => DropReason::FlowDrop,
    }
}

/// A flow as compiled for the datapaths in which its names mean the same.
struct Variant {
    datapaths: Arc<[DatapathKey]>,
    compiled: Compiled,
    ops: Arc<[Op]>,
}

/// What the compiler asked for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum NameQuery {
    Port(Arc<str>),
    AddressSet(Arc<str>),
    PortGroup(Arc<str>),
    Resident(Arc<str>),
}

/// The match and the actions of a flow, parsed.
struct Parsed {
    /// With what the actions need to be true.
    condition: Expr,
    actions: Actions,
}

impl Parsed {
    fn new(recipe: &Recipe) -> Result<Self, Box<FlowError>> {
        let text = &recipe.text;
        let fault = |part, text: &Arc<str>| {
            let (source_name, text) = (recipe.text.source.to_string(), text.to_string());
            move |error| Box::new(FlowError { source_name, part, text, error: Some(error) })
        };
        let condition =
            expr::parse(&text.condition).map_err(fault(FlowPart::Match, &text.condition))?;
        let actions = actions::parse(&text.actions, Stage::of(recipe.table))
            .map_err(fault(FlowPart::Actions, &text.actions))?;
        let needed = actions.prerequisites().into_iter().filter_map(|text| expr::parse(text).ok());
        Ok(Self { condition: needed.fold(condition, Expr::and), actions })
    }
}

/// What names mean in a datapath, remembering which were asked for.
struct Asking<'a> {
    loader: &'a Loader,
    datapath: DatapathKey,
    asked: RefCell<Vec<NameQuery>>,
}

impl Asking<'_> {
    fn ask(&self, question: NameQuery) {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&question) {
            asked.push(question);
        }
    }
}

impl Scope for Asking<'_> {
    fn port(&self, name: &str) -> Option<u16> {
        // What `outport` is while nothing has been chosen: ovn-northd asks for it under this name.
        if matches!(name, "none" | "") {
            return Some(0);
        }
        self.ask(NameQuery::Port(self.loader.strings.find(name)));
        self.loader.names.get(&self.datapath)?.meaning(name).map(PortKey::value)
    }

    fn address_set(&self, name: &str) -> Option<&[Constant]> {
        self.ask(NameQuery::AddressSet(self.loader.strings.find(name)));
        self.loader.address_sets.get(name).map(Vec::as_slice)
    }

    fn port_group(&self, name: &str) -> Option<&[String]> {
        self.ask(NameQuery::PortGroup(self.loader.strings.find(name)));
        self.loader.port_groups.get(name).map(Vec::as_slice)
    }

    fn is_chassis_resident(&self, port: &str) -> bool {
        self.ask(NameQuery::Resident(self.loader.strings.find(port)));
        !self.loader.elsewhere.contains_key(port)
    }
}

/// Texts that occur many times are kept once. Long ones do not.
#[derive(Debug, Default)]
struct Strings(std::collections::HashSet<Arc<str>, ahash::RandomState>);

impl Strings {
    const LONG: usize = 48;

    fn keep(&mut self, text: &str) -> Arc<str> {
        let kept = self.find(text);
        if text.len() < Self::LONG {
            self.0.insert(Arc::clone(&kept));
        }
        kept
    }

    /// The text, shared if it is there.
    fn find(&self, text: &str) -> Arc<str> {
        self.0.get(text).map_or_else(|| text.into(), Arc::clone)
    }
}

impl Loader {
    /// The program as it is now: a value of its own, which later changes do not touch.
    pub fn program(&self) -> Program {
        self.program.clone()
    }

    /// Changes the physical side of the program: entries, tunnels, tags. Flows, datapaths and ports are the loader's.
    pub fn physical(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Adds a datapath without ports.
    pub fn add_datapath(&mut self, key: DatapathKey, name: &str, kind: DatapathKind) {
        let mut datapath = Datapath::new(name, kind);
        let groups = self.groups.iter().filter(|(members, _)| members.contains(&key));
        datapath.groups = groups.map(|(_, group)| group.id).collect();
        self.program.set_datapath(key, datapath);
        self.names.entry(key).or_default();
    }

    /// Adds or replaces a port. Its name is unique among ports and multicast groups of the datapath. Nothing happens when
    /// there is no such datapath.
    pub fn set_port(&mut self, datapath: DatapathKey, key: PortKey, port: LogicalPort) {
        let name = port.name.clone();
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.ports.insert(key, port).map(|port| port.name);
        self.rename(datapath, Named::Port, key, old, Some(&name));
    }

    /// Takes a port out.
    pub fn remove_port(&mut self, datapath: DatapathKey, key: PortKey) {
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.ports.remove(&key).map(|port| port.name);
        self.rename(datapath, Named::Port, key, old, None);
    }

    /// Adds or replaces a multicast group.
    pub fn set_multicast(&mut self, datapath: DatapathKey, key: PortKey, group: MulticastGroup) {
        let name = group.name.clone();
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.multicast.insert(key, group).map(|group| group.name);
        self.rename(datapath, Named::Group, key, old, Some(&name));
    }

    /// Takes a multicast group out.
    pub fn remove_multicast(&mut self, datapath: DatapathKey, key: PortKey) {
        let Some(entry) = self.program.datapath_mut(datapath) else { return };
        let old = entry.multicast.remove(&key).map(|group| group.name);
        self.rename(datapath, Named::Group, key, old, None);
    }

    /// Takes a datapath out, with its ports and multicast groups. Flows for it stay, and are there when it comes back.
    pub fn remove_datapath(&mut self, key: DatapathKey) {
        let Some(datapath) = self.program.datapath(key) else { return };
        let ports: Vec<PortKey> = datapath.ports.keys().copied().collect();
        let groups: Vec<PortKey> = datapath.multicast.keys().copied().collect();
        ports.into_iter().for_each(|port| self.remove_port(key, port));
        groups.into_iter().for_each(|group| self.remove_multicast(key, group));
        self.program.remove_datapath(key);
        self.names.remove(&key);
    }

    /// Makes `name` mean `key` in a datapath, and `old` mean nothing.
    fn rename(
        &mut self,
        datapath: DatapathKey,
        kind: Named,
        key: PortKey,
        old: Option<String>,
        name: Option<&str>,
    ) {
        if old.as_deref() == name {
            return;
        }
        for (name, meaning) in [(old.as_deref(), None), (name, Some(key))] {
            let Some(name) = name else { continue };
            let name = self.strings.keep(name);
            self.change(&NameQuery::Port(Arc::clone(&name)), |loader| {
                let names = loader.names.entry(datapath).or_default();
                let names = match kind {
                    Named::Port => &mut names.ports,
                    Named::Group => &mut names.groups,
                };
                match meaning {
                    Some(key) => drop(names.insert(name, key)),
                    // Another key may have taken the name over.
                    None if names.get(&name) == Some(&key) => drop(names.remove(&name)),
                    None => {}
                }
            });
        }
    }

    /// Says what `$name` stands for.
    pub fn set_address_set(&mut self, name: &str, members: Vec<Constant>) {
        let name = self.strings.keep(name);
        self.change(&NameQuery::AddressSet(Arc::clone(&name)), |loader| {
            loader.address_sets.insert(name, members);
        });
    }

    /// Says what `@name` stands for: names of ports.
    pub fn set_port_group(&mut self, name: &str, ports: Vec<String>) {
        let name = self.strings.keep(name);
        self.change(&NameQuery::PortGroup(Arc::clone(&name)), |loader| {
            loader.port_groups.insert(name, ports);
        });
    }

    /// Says whether a port is on this host, for `is_chassis_resident`. Ports are, unless said otherwise.
    pub fn set_resident(&mut self, port: &str, resident: bool) {
        let port = self.strings.keep(port);
        self.change(&NameQuery::Resident(Arc::clone(&port)), |loader| {
            if resident {
                loader.elsewhere.remove(&port);
            } else {
                loader.elsewhere.insert(port, ());
            }
        });
    }

    /// Changes the answer to a question, and compiles the flows that have asked it again.
    fn change(&mut self, question: &NameQuery, change: impl FnOnce(&mut Self)) {
        let users = self.users.remove(question).unwrap_or_default();
        let affected: Vec<(FlowId, Loaded)> =
            users.into_iter().filter_map(|id| Some((id, self.take_out(id)?))).collect();
        change(self);
        for (id, loaded) in affected {
            // It was compiled once: its texts are correct whatever the names mean.
            if self.place(id, loaded.datapaths, Recipe::from(&*loaded.flow)).is_ok()
                && let Some(again) = self.flows.get(&id)
            {
                let (packets, bytes) = loaded.flow.counters.get();
                again.flow.counters.add(packets, bytes);
            }
        }
    }

    /// Adds a flow. Its number is for [`Loader::remove_flow`].
    ///
    /// # Errors
    /// [`FlowError`] when the match or the actions are wrong; the program is as before.
    pub fn add_flow(&mut self, flow: &LogicalFlow) -> Result<FlowId, Box<FlowError>> {
        let table = TableId::logical(flow.direction, flow.table).ok_or_else(|| {
            Box::new(FlowError {
                source_name: flow.source.clone(),
                part: FlowPart::Table,
                text: flow.table.to_string(),
                error: None,
            })
        })?;
        let text = FlowText {
            condition: self.strings.keep(&flow.condition),
            actions: self.strings.keep(&flow.actions),
            stage: self.strings.keep(&flow.stage),
            source: self.strings.keep(&flow.source),
            cookie: flow.cookie,
        };
        let mut datapaths = flow.datapaths.clone();
        datapaths.sort_unstable();
        datapaths.dedup();
        let datapaths = match self.groups.get_key_value(&*datapaths) {
            Some((kept, _)) => Arc::clone(kept),
            None => datapaths.into(),
        };
        let id = FlowId(self.next);
        self.place(id, datapaths, Recipe { table, priority: flow.priority, text })?;
        self.next += 1;
        self.forget_unused();
        Ok(id)
    }

    /// Takes a flow out. `false` when it is not there.
    pub fn remove_flow(&mut self, id: FlowId) -> bool {
        self.take_out(id).is_some()
    }

    /// How many flows there are.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    fn take_out(&mut self, id: FlowId) -> Option<Loaded> {
        let loaded = self.flows.remove(&id)?;
        // It was compiled when it was put in.
        let (variants, asked) =
            self.compile(&loaded.datapaths, &Recipe::from(&*loaded.flow)).ok()?;
        for variant in variants {
            if !variant.compiled.rows.is_empty() {
                self.leave_group(&variant.datapaths, &loaded.flow, &variant.compiled.rows);
            }
        }
        for question in asked {
            if let Entry::Occupied(mut users) = self.users.entry(question) {
                users.get_mut().retain(|user| *user != id);
                if users.get().is_empty() {
                    users.remove();
                }
            }
        }
        Some(loaded)
    }

    /// Compiles a flow and files it under the groups of datapaths in which its names mean the same.
    fn place(
        &mut self,
        id: FlowId,
        datapaths: Arc<[DatapathKey]>,
        recipe: Recipe,
    ) -> Result<(), Box<FlowError>> {
        let (variants, asked) = self.compile(&datapaths, &recipe)?;
        if asked.is_empty()
            && recipe.text.actions.len() < Strings::LONG
            && let Some(variant) = variants.first()
        {
            let key = (Arc::clone(&recipe.text.actions), recipe.table);
            self.shared_ops.entry(key).or_insert_with(|| Arc::clone(&variant.ops));
        }
        let make = |residual, ops, counters| {
            Arc::new(Flow {
                id,
                table: recipe.table,
                priority: recipe.priority,
                residual,
                ops,
                drop_reason: drop_reason(&recipe.text.stage),
                text: recipe.text.clone(),
                counters,
            })
        };
        let mut first: Option<Arc<Flow>> = None;
        for Variant { datapaths, compiled, ops } in variants {
            if compiled.rows.is_empty() {
                continue;
            }
            let counters = first.as_ref().map(FlowCounters::of).unwrap_or_default();
            let flow = make(compiled.residual.map(Box::new), ops, counters);
            let group = self.join_group(datapaths);
            self.program.add_flow(group, &flow, &compiled.rows);
            first.get_or_insert(flow);
        }
        for question in asked {
            self.users.entry(question).or_default().push(id);
        }
        let flow = first.unwrap_or_else(|| make(None, Arc::default(), FlowCounters::default()));
        self.flows.insert(id, Loaded { datapaths, flow });
        Ok(())
    }

    /// Compiles a flow for each set of datapaths in which its names mean the same, and says what it has asked, each question
    /// once.
    fn compile(
        &self,
        datapaths: &Arc<[DatapathKey]>,
        recipe: &Recipe,
    ) -> Result<(Vec<Variant>, Vec<NameQuery>), Box<FlowError>> {
        let parsed = Parsed::new(recipe)?;
        let mut variants = Vec::with_capacity(1);
        let mut asked: Vec<NameQuery> = Vec::new();
        let mut left: Vec<DatapathKey> = Vec::new();
        let mut next = datapaths.first().copied();
        while let Some(first) = next {
            let asking = Asking { loader: self, datapath: first, asked: RefCell::default() };
            let compiled = expr::compile(&parsed.condition, &asking);
            let ops = self.compile_actions(&parsed.actions, recipe, &asking);
            let questions = asking.asked.into_inner();
            let alike = |datapath: &DatapathKey| {
                questions.iter().all(|q| self.answer(*datapath, q) == self.answer(first, q))
            };
            let among = if variants.is_empty() { &datapaths[..] } else { &left };
            let (same, other): (Vec<_>, Vec<_>) = among.iter().copied().partition(alike);
            let whole = same.len() == datapaths.len();
            let members = if whole { Arc::clone(datapaths) } else { same.into() };
            variants.push(Variant { datapaths: members, compiled, ops });
            asked.extend(questions);
            left = other;
            next = left.first().copied();
        }
        asked.sort_unstable();
        asked.dedup();
        Ok((variants, asked))
    }

    fn compile_actions(
        &self,
        actions: &Actions,
        recipe: &Recipe,
        asking: &Asking<'_>,
    ) -> Arc<[Op]> {
        let key = (Arc::clone(&recipe.text.actions), recipe.table);
        match self.shared_ops.get(&key) {
            Some(ops) => Arc::clone(ops),
            None => actions::compile(actions, asking),
        }
    }

    /// Lets go of texts and compiled actions that nothing uses any more, when there may be as many as those that are used. So each costs
    /// little, however many there are.
    fn forget_unused(&mut self) {
        if self.shared_ops.len() + self.strings.0.len() < self.forget_at {
            return;
        }
        self.shared_ops.retain(|_, ops| Arc::strong_count(ops) > 1);
        self.strings.0.retain(|text| Arc::strong_count(text) > 1);
        self.forget_at = FEW_TEXTS.max(2 * (self.shared_ops.len() + self.strings.0.len()));
    }

    /// The group of these datapaths, made if there is none, for one more flow.
    fn join_group(&mut self, members: Arc<[DatapathKey]>) -> GroupId {
        if let Some(group) = self.groups.get_mut(&members) {
            group.flows += 1;
            return group.id;
        }
        let id = self.free_groups.pop().unwrap_or_else(|| self.program.add_group());
        for &member in &*members {
            if let Some(datapath) = self.program.datapath_mut(member) {
                datapath.groups.push(id);
            }
        }
        self.groups.insert(members, GroupUse { id, flows: 1 });
        id
    }

    /// Takes a flow out of a group. A group without flows is given back: every lookup asks each group of its datapath.
    fn leave_group(&mut self, members: &Arc<[DatapathKey]>, flow: &Flow, rows: &[Match]) {
        let Some(group) = self.groups.get_mut(members) else { return };
        self.program.remove_flow(group.id, flow, rows);
        group.flows -= 1;
        if group.flows > 0 {
            return;
        }
        let id = group.id;
        self.groups.remove(members);
        self.free_groups.push(id);
        for &member in &**members {
            if let Some(datapath) = self.program.datapath_mut(member) {
                datapath.groups.retain(|group| *group != id);
            }
        }
    }

    /// What a question means in a datapath, as far as it differs between datapaths.
    fn answer(&self, datapath: DatapathKey, question: &NameQuery) -> Option<PortKey> {
        match question {
            NameQuery::Port(name) => self.names.get(&datapath)?.meaning(name),
            // The same everywhere.
            NameQuery::AddressSet(_) | NameQuery::PortGroup(_) | NameQuery::Resident(_) => None,
        }
    }
}
