//! Random numbers that are the same on every machine.
//!
//! Owns the generator (xoshiro256++ of Blackman and Vigna, 2019, seeded by SplitMix64) and the draws made from
//! it. Nothing here may call the platform's `exp` or `ln`: their last bit differs between C libraries, and a
//! result must not depend on the workstation that computed it. `libm` is pure Rust.

/// A xoshiro256++ stream.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream `stream` of the seed `seed`; streams of one seed are independent for all practical purposes.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut counter = mix(seed) ^ stream.wrapping_mul(0xd605_bbb5_8c8a_bbfd);
        let mut next = || {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(counter)
        };
        Self { state: [next(), next(), next(), next()] }
    }

    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in [low, high).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Standard normal, by Marsaglia's polar method.
    pub fn normal(&mut self) -> f64 {
        loop {
            let x = 2.0 * self.uniform() - 1.0;
            let y = 2.0 * self.uniform() - 1.0;
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * libm::log(square) / square).sqrt();
            }
        }
    }

    /// Gamma with mean 1 and the given shape (at least 1), by Marsaglia and Tsang (2000).
    pub fn gamma_of_mean_one(&mut self, shape: f64) -> f64 {
        let d = shape.max(1.0) - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            let u = self.uniform();
            let squeezed = u < 1.0 - 0.0331 * (x * x) * (x * x);
            if squeezed || libm::log(u) < 0.5 * x * x + d * (1.0 - v + libm::log(v)) {
                return d * v / shape.max(1.0);
            }
        }
    }

    /// Poisson by sequential inversion: the means of this model are a few dozen at most. Counts end at 511.
    pub fn poisson(&mut self, mean: f64) -> u32 {
        let mut probability = libm::exp(-mean);
        let mut left = self.uniform();
        for (count, reciprocal) in RECIPROCALS.iter().enumerate() {
            if left < probability {
                return count as u32;
            }
            left -= probability;
            probability *= mean * reciprocal;
        }
        RECIPROCALS.len() as u32
    }
}

/// 1/1, 1/2, …: a division in each step of the Poisson search would be half of a night's work.
static RECIPROCALS: [f64; 511] = {
    let mut reciprocals = [0.0; 511];
    let mut i = 0;
    while i < reciprocals.len() {
        reciprocals[i] = 1.0 / (i + 1) as f64;
        i += 1;
    }
    reciprocals
};

/// SplitMix64's output function (Steele, Lea and Flood, 2014), also used to hash keys.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A discrete distribution drawn from in constant time: Walker's alias method, built as in Vose (1991).
#[derive(Debug, Clone)]
pub struct Alias {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    threshold: u32,
    other: u32,
}

impl Alias {
    /// From weights that need not sum to one; `None` when they sum to nothing.
    pub fn new(weights: &[f64]) -> Option<Self> {
        let total: f64 = weights.iter().sum();
        if total <= 0.0 {
            return None;
        }
        let scale = weights.len() as f64 / total;
        let mut share: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
        let mut columns: Vec<Column> =
            (0..weights.len() as u32).map(|own| Column { threshold: u32::MAX, other: own }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..share.len()).partition(|&i| share[i] < 1.0);
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            columns[poor] = Column { threshold: (share[poor] * 4_294_967_296.0) as u32, other: rich as u32 };
            share[rich] -= 1.0 - share[poor];
            if share[rich] < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        Some(Self { columns })
    }

    pub fn draw(&self, random: &mut Random) -> usize {
        let bits = random.next_u64();
        let column = (((bits >> 32) * self.columns.len() as u64) >> 32) as usize;
        let Column { threshold, other } = self.columns[column];
        // Both outcomes are at hand, so this compiles to a move and not to a branch nobody can predict.
        let own = column as u32;
        (if (bits as u32) < threshold { own } else { other }) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_variance(draws: usize, mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..draws).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / draws as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / draws as f64;
        (mean, variance)
    }

    #[test]
    fn xoshiro_matches_its_reference() {
        // The first outputs of xoshiro256++ for the state 1, 2, 3, 4, from the authors' C code.
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn draws_have_their_moments() {
        let mut random = Random::new(7, 7);
        for mean in [0.3, 4.0, 60.0] {
            let (got, variance) = mean_and_variance(40_000, || f64::from(random.poisson(mean)));
            assert!((got - mean).abs() < 0.05 * mean && (variance - mean).abs() < 0.05 * mean, "{got} {variance}");
        }
        let (mean, variance) = mean_and_variance(40_000, || random.gamma_of_mean_one(5.0));
        assert!((mean - 1.0).abs() < 0.01 && (variance - 0.2).abs() < 0.01, "{mean} {variance}");
    }

    #[test]
    fn the_alias_table_keeps_the_weights() {
        let weights = [1.0, 0.0, 5.0, 4.0];
        let alias = Alias::new(&weights).expect("the weights are positive");
        let mut random = Random::new(1, 1);
        let mut hits = [0.0; 4];
        (0..100_000).for_each(|_| hits[alias.draw(&mut random)] += 1e-4);
        for (hit, weight) in hits.iter().zip(weights) {
            assert!((hit - weight).abs() < 0.1, "{hits:?}");
        }
        assert_eq!(hits[1], 0.0);
        assert!(Alias::new(&[0.0, 0.0]).is_none());
    }
}
