//! Inventory control: which bookings are accepted. The one replaceable part of the controller.
//!
//! Both controls answer the same question: how many seats must stay free on a leg when a segment and class is
//! sold there. They differ in whom they protect those seats for.
//!
//! - [`ByLeg`]: each leg is optimised by itself. A segment's class is the class of each leg it crosses; the fare
//!   that a leg sees is the mean of the whole fares sold in that class. Leg-based EMSR-b, the industry's standard
//!   (Belobaba, 1989 and 1992).
//! - [`BySegment`]: displacement-adjusted virtual nesting (Smith and Penn, 1988; Williamson, 1992; Talluri and van
//!   Ryzin, 2004, section 3.4.3). A through passenger is worth the fare less what it displaces on the other legs; segments
//!   and classes are put into ten buckets by that value on each leg, and EMSR-b protects the better buckets.
//!
//! On a flight of one leg nothing is displaced and each class is its own bucket: both are then the same control.

use crate::emsr::{self, ClassDemand};
use crate::itinerary::Itinerary;
use crate::records::{CLASSES, MAX_LEGS, MAX_SEGMENTS};

/// Protection levels of a leg: what is kept for the best class, the best two and so on.
pub type LegProtection = [f64; CLASSES - 1];

/// A class that must not be sold, however empty the leg is.
const CLOSED: i32 = i32::MAX / 2;

/// What a control decided for one period.
#[derive(Debug, Clone, PartialEq)]
pub struct Controls {
    /// Seats that must stay free on the leg when this class of this segment is sold.
    pub keep_free: [[[i32; CLASSES]; MAX_SEGMENTS]; MAX_LEGS],
    pub protection: [LegProtection; MAX_LEGS],
}

impl Controls {
    fn open() -> Self {
        Self { keep_free: [[[0; CLASSES]; MAX_SEGMENTS]; MAX_LEGS], protection: [LegProtection::default(); MAX_LEGS] }
    }

    /// Seats for sale in a class of a segment, open on all legs that it crosses.
    pub fn for_sale(&self, itinerary: &Itinerary, left: &[i32; MAX_LEGS], segment: usize, class: usize) -> i32 {
        let legs = itinerary.segments[segment];
        (legs.first..=legs.last).map(|leg| left[leg] - self.keep_free[leg][segment][class]).min().unwrap_or(0)
    }
}

/// The replaceable part: decides what is for sale in a period from the demand still to come.
pub trait InventoryControl {
    fn controls(&self, itinerary: &Itinerary, period: usize) -> Controls;
}

#[derive(Debug, Clone, Copy)]
pub struct ByLeg;

#[derive(Debug, Clone, Copy)]
pub struct BySegment;

impl InventoryControl for ByLeg {
    fn controls(&self, itinerary: &Itinerary, period: usize) -> Controls {
        let mut controls = Controls::open();
        for leg in 0..itinerary.legs {
            let classes = leg_classes(itinerary, leg, period);
            emsr::protection_levels(&classes, &mut controls.protection[leg]);
            for segment in itinerary.crossing(leg) {
                for class in 1..CLASSES {
                    controls.keep_free[leg][segment][class] = seats(controls.protection[leg][class - 1]);
                }
            }
        }
        controls
    }
}

impl InventoryControl for BySegment {
    fn controls(&self, itinerary: &Itinerary, period: usize) -> Controls {
        let mut controls = Controls::open();
        let bid_price = bid_prices(itinerary);
        for leg in 0..itinerary.legs {
            let products = products_by_value(itinerary, leg, period, &bid_price);
            let bucket_of = |rank: usize| rank * CLASSES / products.len();
            let mut buckets = [ClassDemand::default(); CLASSES];
            for (rank, product) in products.iter().enumerate() {
                add(&mut buckets[bucket_of(rank)], product.demand);
            }
            buckets.iter_mut().for_each(finish);
            emsr::protection_levels(&buckets, &mut controls.protection[leg]);
            for (rank, product) in products.iter().enumerate() {
                let bucket = bucket_of(rank);
                controls.keep_free[leg][product.segment][product.class] = if product.demand.fare <= 0.0 {
                    CLOSED
                } else if bucket > 0 {
                    seats(controls.protection[leg][bucket - 1])
                } else {
                    0
                };
            }
        }
        controls
    }
}

/// A class of a segment as one leg sees it: its fare is what it is worth there.
#[derive(Debug, Clone, Copy)]
struct Product {
    segment: usize,
    class: usize,
    demand: ClassDemand,
}

/// Demand of each class on a leg, all segments that cross it together.
fn leg_classes(itinerary: &Itinerary, leg: usize, period: usize) -> [ClassDemand; CLASSES] {
    std::array::from_fn(|class| {
        let mut merged = ClassDemand::default();
        for segment in itinerary.crossing(leg) {
            let demand = itinerary.to_come[segment][period][class];
            let fare = itinerary.fare[segment][class];
            add(&mut merged, ClassDemand { fare, mean: demand.mean, variance: demand.variance });
        }
        finish(&mut merged);
        merged
    })
}

/// What the last seat of each leg will earn, as seen when bookings open. Kept for the whole horizon: a price from
/// the demand still to come would need the seats left, which the plan cannot know before it is carried out. A
/// flight of one leg displaces nothing.
fn bid_prices(itinerary: &Itinerary) -> [f64; MAX_LEGS] {
    let mut prices = [0.0; MAX_LEGS];
    if itinerary.legs > 1 {
        for (leg, price) in prices.iter_mut().enumerate().take(itinerary.legs) {
            *price = emsr::marginal_value(&leg_classes(itinerary, leg, 0), f64::from(itinerary.authorised));
        }
    }
    prices
}

fn products_by_value(itinerary: &Itinerary, leg: usize, period: usize, bid_price: &[f64; MAX_LEGS]) -> Vec<Product> {
    let mut products = Vec::with_capacity(CLASSES * MAX_SEGMENTS);
    for segment in itinerary.crossing(leg) {
        let legs = itinerary.segments[segment];
        let displaced: f64 = (legs.first..=legs.last).filter(|&other| other != leg).map(|other| bid_price[other]).sum();
        for class in 0..CLASSES {
            let demand = itinerary.to_come[segment][period][class];
            let fare = itinerary.fare[segment][class] - displaced;
            let demand = ClassDemand { fare, mean: demand.mean, variance: demand.variance };
            products.push(Product { segment, class, demand });
        }
    }
    // A stable sort: equal values stay in the order of segments and classes on every machine.
    products.sort_by(|a, b| b.demand.fare.total_cmp(&a.demand.fare));
    products
}

/// Adds a demand to a class whose `fare` holds revenue until it is finished. A class without any demand still
/// has a place in the order of fares: the first one's.
fn add(merged: &mut ClassDemand, demand: ClassDemand) {
    let weight = demand.mean + NEGLIGIBLE;
    merged.fare += demand.fare.max(0.0) * weight;
    merged.mean += weight;
    merged.variance += demand.variance;
}

fn finish(merged: &mut ClassDemand) {
    if merged.mean > 0.0 {
        merged.fare /= merged.mean;
    }
}

/// Weighs fares where there is no demand; far too little to protect a seat for.
const NEGLIGIBLE: f64 = 1e-9;

/// Whole seats of a protection level.
fn seats(level: f64) -> i32 {
    level.round() as i32
}
