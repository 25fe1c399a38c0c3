//! Which logical switches a packet can get to from which, over logical routers.

/// The parts of a network between which there is no way.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// For each switch, then for each router: another member of its part, or itself. Following these leads to the member that
    /// stands for the part.
    toward: Vec<usize>,
    switches: usize,
}

impl Reach {
    /// Nothing is linked.
    pub(crate) fn new(switches: usize, routers: usize) -> Self {
        Self { toward: (0..switches + routers).collect(), switches }
    }

    /// The router at `router` has a port on the switch at `switch`.
    pub(crate) fn link_switch(&mut self, router: usize, switch: usize) {
        self.link(self.switches + router, switch);
    }

    /// Two routers are linked.
    pub(crate) fn link_routers(&mut self, one: usize, other: usize) {
        self.link(self.switches + one, self.switches + other);
    }

    /// The part that the switch at `switch` is in.
    pub(crate) fn part_of_switch(&self, switch: usize) -> usize {
        self.root(switch)
    }

    /// The part that the router at `router` is in.
    pub(crate) fn part_of_router(&self, router: usize) -> usize {
        self.root(self.switches + router)
    }

    fn link(&mut self, one: usize, other: usize) {
        let (one, other) = (self.shorten(one), self.shorten(other));
        self.toward[one] = other;
    }

    fn root(&self, mut at: usize) -> usize {
        while self.toward[at] != at {
            at = self.toward[at];
        }
        at
    }

    /// The root of `at`, with the way to it halved, so that ways stay short.
    fn shorten(&mut self, mut at: usize) -> usize {
        while self.toward[at] != at {
            let next = self.toward[at];
            self.toward[at] = self.toward[next];
            at = next;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_in_one_part_when_routers_lead_from_one_to_the_other() {
        let mut reach = Reach::new(4, 3);
        reach.link_switch(0, 0);
        reach.link_switch(0, 1);
        reach.link_routers(0, 1);
        reach.link_routers(1, 0);
        reach.link_switch(1, 2);
        assert_eq!(reach.part_of_switch(0), reach.part_of_switch(2));
        assert_eq!(reach.part_of_switch(1), reach.part_of_router(1));
        assert_ne!(reach.part_of_switch(0), reach.part_of_switch(3));
        assert_ne!(reach.part_of_router(2), reach.part_of_switch(3));
    }
}
