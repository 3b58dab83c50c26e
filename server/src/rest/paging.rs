//! Pages: a cursor is where the next one begins, and nothing that a caller should look into.

use super::problem_details::Refusal;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Serialize;
use utoipa::ToSchema;

/// Items, and where to go on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Send it as `cursor` for what comes next; null: this is the end
    pub next: Option<String>,
    /// How many there are in all, where that is kept
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub total: Option<i64>,
}

impl<T> Page<T> {
    /// `place`: where the next page begins, if this one is full.
    pub fn new(items: Vec<T>, limit: u32, of: &'static str, place: impl Fn(&T) -> String) -> Page<T> {
        let full = items.len() >= limit as usize;
        let next = items.last().filter(|_| full).map(|last| cursor(of, &place(last)));
        Page { items, next, total: None }
    }

    /// All there is.
    pub fn whole(items: Vec<T>) -> Page<T> {
        let total = Some(items.len() as i64);
        Page { items, next: None, total }
    }

    /// A part of what is known whole, and ordered by this name.
    pub fn part(
        mut all: Vec<T>,
        after: Option<&str>,
        limit: u32,
        of: &'static str,
        name: impl Fn(&T) -> String,
    ) -> Page<T> {
        let total = Some(all.len() as i64);
        if let Some(after) = after {
            all.retain(|item| name(item).as_str() > after);
        }
        let more = all.len() > limit as usize;
        all.truncate(limit as usize);
        let next = all.last().filter(|_| more).map(|last| cursor(of, &name(last)));
        Page { items: all, next, total }
    }
}

pub fn cursor(of: &str, place: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{of} {place}"))
}

/// What a cursor of this listing says.
pub fn place(of: &str, cursor: Option<&str>) -> Result<Option<String>, Refusal> {
    let Some(cursor) = cursor else { return Ok(None) };
    let wrong = || Refusal::bad_request("cursor", "it is not the `next` of an earlier page of this listing");
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| wrong())?;
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    let place = text.strip_prefix(of).and_then(|rest| rest.strip_prefix(' ')).ok_or_else(wrong)?;
    if place.contains('\0') { Err(wrong()) } else { Ok(Some(place.to_owned())) }
}

/// The same, of a listing that goes by id.
pub fn id_place(of: &str, cursor: Option<&str>) -> Result<i64, Refusal> {
    let wrong = || Refusal::bad_request("cursor", "it is not the `next` of an earlier page of this listing");
    match place(of, cursor)? {
        None => Ok(0),
        Some(text) => text.parse().ok().filter(|id| *id > 0).ok_or_else(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_for_its_listing_only() {
        let cursor = cursor("jobs", "42");
        assert_eq!(id_place("jobs", Some(&cursor)).expect("its own"), 42);
        assert!(id_place("users", Some(&cursor)).is_err());
        for nonsense in ["", "x", "****", "ØØ"] {
            assert!(id_place("jobs", Some(nonsense)).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_part_ends_with_where_the_next_begins() {
        let names = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let first = Page::part(names(), None, 2, "n", Clone::clone);
        assert_eq!((first.items.len(), first.total), (2, Some(3)));
        let after = place("n", first.next.as_deref()).expect("its own");
        let second = Page::part(names(), after.as_deref(), 2, "n", Clone::clone);
        assert_eq!((second.items, second.next), (vec!["c".to_owned()], None));
    }
}
