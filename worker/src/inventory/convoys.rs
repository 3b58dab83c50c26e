//! Cuts between convoys.

use pcfarm_proto::v1;

/// Place from which on problems are returned: behind `kept` problems, at most `most` before the end, and between convoys if these
/// must stay whole. A whole convoy that is larger than that is returned by itself.
pub fn cut_place(problems: &[v1::Problem], kept: usize, most: usize, whole_convoys: bool) -> usize {
    let end = problems.len();
    let kept = kept.min(end);
    let place = kept.max(end.saturating_sub(most));
    if !whole_convoys || place == end {
        return place;
    }
    let convoy = |place: usize| problems.get(place).map(|problem| problem.batch_order);
    let begins = |place: &usize| place.checked_sub(1).is_none_or(|before| convoy(before) != convoy(*place));
    let behind = (place..end).find(begins);
    behind.or_else(|| (kept..place).rev().find(begins)).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convoys_of_dependent_problems_are_not_cut() {
        let problems: Vec<v1::Problem> =
            [1, 1, 1, 2, 2, 3].map(|batch_order| v1::Problem { batch_order, ..Default::default() }).into();
        for (end, kept, most, loose, whole) in [
            (6, 0, 9, 0, 0),
            (6, 1, 9, 1, 3),
            (6, 3, 9, 3, 3),
            (6, 4, 9, 4, 5),
            (6, 6, 9, 6, 6),
            (6, 0, 2, 4, 5),
            (6, 9, 9, 6, 6),
            (6, 0, 0, 6, 6),
            // The last convoy is larger than the request.
            (5, 1, 1, 4, 3),
            (3, 0, 1, 2, 0),
            (3, 1, 1, 2, 3),
        ] {
            let case = format!("{kept} of {end} kept, at most {most}");
            assert_eq!(cut_place(&problems[..end], kept, most, false), loose, "{case}");
            assert_eq!(cut_place(&problems[..end], kept, most, true), whole, "{case}, whole");
        }
    }
}
