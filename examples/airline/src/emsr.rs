//! EMSR-b: how many seats to protect for the more valuable classes.
//!
//! Method: Belobaba (1989), "Application of a probabilistic decision model to airline seat inventory control",
//! Operations Research 37(2); variant b from Belobaba (1992); as given in Talluri and van Ryzin (2004), "The
//! Theory and Practice of Revenue Management", section 2.2.4.2. Demands are taken as independent and normal. The
//! classes above j are merged into one, whose fare is their demand-weighted mean, and Littlewood's rule is
//! applied between it and class j+1:  y_j = μ + σ Φ⁻¹(1 − f_{j+1} / f̄).

use crate::normal;

/// Demand to come for one class (or bucket of classes), and its fare.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassDemand {
    pub fare: f64,
    pub mean: f64,
    pub variance: f64,
}

/// Protection levels: `protected[j]` seats are kept for the classes 0..=j against class j+1, `classes` being in
/// falling order of fare. One shorter than `classes`; never negative, never falling (nested).
pub fn protection_levels(classes: &[ClassDemand], protected: &mut [f64]) {
    let mut merged = ClassDemand::default();
    let mut revenue = 0.0;
    let mut level = 0.0_f64;
    for (j, protected) in protected.iter_mut().enumerate().take(classes.len().saturating_sub(1)) {
        merged.mean += classes[j].mean;
        merged.variance += classes[j].variance;
        revenue += classes[j].mean * classes[j].fare;
        // Without demand above there is nothing to protect for, and the merged fare is not defined.
        if merged.mean > 0.0 {
            merged.fare = revenue / merged.mean;
            level = level.max(littlewood(merged, classes[j + 1].fare));
        }
        *protected = level;
    }
}

/// What the last of `seats` seats is expected to earn when the dearest requests are served first: the bid price
/// of a leg. `classes` are in falling order of fare. The seat earns at least class j's fare when the demand of the
/// classes 0..=j reaches it, so its value is Σ (f_j − f_{j+1}) P(D_0 + … + D_j > seats).
pub fn marginal_value(classes: &[ClassDemand], seats: f64) -> f64 {
    let (mut mean, mut variance, mut value) = (0.0, 0.0, 0.0);
    for (j, class) in classes.iter().enumerate() {
        mean += class.mean;
        variance += class.variance;
        let next_fare = classes.get(j + 1).map_or(0.0, |next| next.fare);
        let reached = normal::distribution((mean - seats) / variance.max(f64::MIN_POSITIVE).sqrt());
        value += (class.fare - next_fare) * reached;
    }
    value
}

fn littlewood(above: ClassDemand, fare_below: f64) -> f64 {
    // When the lower class pays as much, Φ⁻¹ of a number below zero would be −∞: nothing is protected.
    if fare_below >= above.fare {
        return 0.0;
    }
    (above.mean + above.variance.sqrt() * normal::quantile(1.0 - fare_below / above.fare)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn levels(classes: &[ClassDemand]) -> Vec<f64> {
        let mut protected = vec![0.0; classes.len() - 1];
        protection_levels(classes, &mut protected);
        protected
    }

    #[test]
    fn the_textbook_case() {
        // The four-class example of the literature (Belobaba; Talluri and van Ryzin, 2004, chapter 2).
        let fares = [1050.0, 567.0, 534.0, 520.0];
        let means = [17.3, 45.1, 39.6, 34.0];
        let deviations = [5.8, 15.0, 13.2, 11.3];
        let classes: Vec<ClassDemand> = (0..4)
            .map(|j| ClassDemand { fare: fares[j], mean: means[j], variance: f64::powi(deviations[j], 2) })
            .collect();
        for (got, expected) in levels(&classes).iter().zip([16.7, 50.9, 83.2]) {
            assert!((got - expected).abs() < 0.05, "{got} instead of {expected}");
        }
    }

    #[test]
    fn without_demand_nothing_is_protected() {
        let classes = [100.0, 80.0, 60.0].map(|fare| ClassDemand { fare, ..ClassDemand::default() });
        assert_eq!(levels(&classes), [0.0, 0.0]);
        assert_eq!(marginal_value(&classes, 10.0), 0.0);
    }

    #[test]
    fn a_seat_is_worth_less_the_more_there_are() {
        let classes = [ClassDemand { fare: 200.0, mean: 50.0, variance: 100.0 }];
        let value = |seats| marginal_value(&classes, seats);
        assert!((value(50.0) - 100.0).abs() < 1e-9);
        assert!(value(40.0) > value(50.0) && value(50.0) > value(60.0));
    }

    proptest! {
        #[test]
        fn levels_are_nested(mut fares in prop::collection::vec(1.0f64..2000.0, 2..12), seed in 0u64..1000) {
            fares.sort_by(|a, b| b.total_cmp(a));
            let mut random = crate::random::Random::new(seed, 0);
            let classes: Vec<ClassDemand> = fares.iter().map(|&fare| {
                let mean = random.between(0.0, 50.0);
                ClassDemand { fare, mean, variance: mean * random.between(1.0, 4.0) }
            }).collect();
            let levels = levels(&classes);
            prop_assert!(levels[0] >= 0.0 && levels.is_sorted() && levels.iter().all(|level| level.is_finite()));
        }
    }
}
