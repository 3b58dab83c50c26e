//! Where alerts may be carried to now, so that places that are slow or dead do not hold up the others. A place is a host of
//! webhooks, or all mail.

use std::collections::{HashMap, HashSet};

/// Deliveries at a time.
const ROOM: usize = 32;

/// Of these to one place.
const AT_ONE_PLACE: usize = 4;

/// To places that did not answer last time: one each, and no more than this to all of them.
const TO_THE_DEAD: usize = ROOM / 2;

/// So many are remembered to be dead; should there be more, they are found out again.
const DEAD_LIMIT: usize = 10_000;

#[derive(Debug, Default)]
pub struct Desk {
    under_way: HashMap<String, usize>,
    dead: HashSet<String>,
}

impl Desk {
    pub fn room(&self) -> i64 {
        ROOM.saturating_sub(self.under_way.values().sum()) as i64
    }

    /// Places to which nothing more is carried for the moment.
    pub fn closed(&self) -> Vec<String> {
        let to_the_dead: usize = self.dead.iter().filter_map(|place| self.under_way.get(place)).sum();
        if to_the_dead >= TO_THE_DEAD {
            let full = self.under_way.iter().filter(|(_, count)| **count >= AT_ONE_PLACE).map(|(place, _)| place);
            return self.dead.iter().chain(full).cloned().collect();
        }
        let limit = |place| if self.dead.contains(place) { 1 } else { AT_ONE_PLACE };
        self.under_way
            .iter()
            .filter(|(place, count)| **count >= limit(*place))
            .map(|(place, _)| place.clone())
            .collect()
    }

    pub fn begin(&mut self, place: &str) {
        *self.under_way.entry(place.to_owned()).or_default() += 1;
    }

    pub fn ended(&mut self, place: &str, worked: bool) {
        if let Some(count) = self.under_way.get_mut(place) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(place);
            }
        }
        if worked {
            self.dead.remove(place);
        } else {
            if self.dead.len() >= DEAD_LIMIT {
                self.dead.clear();
            }
            self.dead.insert(place.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(desk: &Desk) -> Vec<String> {
        let mut closed = desk.closed();
        closed.sort();
        closed
    }

    #[test]
    fn a_place_has_some_at_a_time_and_a_dead_one_one() {
        let mut desk = Desk::default();
        for _ in 0..AT_ONE_PLACE {
            assert!(closed(&desk).is_empty());
            desk.begin("a");
        }
        assert_eq!(closed(&desk), ["a"]);
        desk.ended("a", false);
        assert_eq!(closed(&desk), ["a"], "three are under way to a place that is dead");
        desk.ended("a", true);
        assert!(closed(&desk).is_empty(), "it has answered");
        desk.ended("a", false);
        desk.ended("a", false);
        assert!(closed(&desk).is_empty(), "one may find out whether it lives again");
        desk.begin("a");
        assert_eq!(closed(&desk), ["a"]);
    }

    #[test]
    fn the_dead_leave_half_the_room_to_the_living() {
        let mut desk = Desk::default();
        let names: Vec<String> = (0..40).map(|n| format!("dead{n}")).collect();
        for name in &names {
            desk.begin(name);
            desk.ended(name, false);
        }
        while let Some(open) = names.iter().find(|name| !desk.closed().contains(name)) {
            desk.begin(open);
        }
        assert_eq!(desk.room(), (ROOM - TO_THE_DEAD) as i64);
        assert!(!desk.closed().contains(&"alive".to_owned()));
    }
}
