//! The standard normal distribution: its distribution function and its quantiles, the same bits everywhere.

/// Φ(x).
pub fn distribution(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// Φ⁻¹(p): algorithm AS 241 (PPND16) of Wichura (1988), accurate to about one part in 10¹⁶.
pub fn quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * polynomial(r, &CENTRE.0) / polynomial(r, &CENTRE.1);
    }
    let r = (-libm::log(if q < 0.0 { p } else { 1.0 - p })).sqrt();
    let value = if r <= 5.0 {
        polynomial(r - 1.6, &SHOULDER.0) / polynomial(r - 1.6, &SHOULDER.1)
    } else {
        polynomial(r - 5.0, &TAIL.0) / polynomial(r - 5.0, &TAIL.1)
    };
    if q < 0.0 { -value } else { value }
}

/// Horner's rule, highest power first in the slice.
fn polynomial(x: f64, coefficients: &[f64; 8]) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

type Ratio = ([f64; 8], [f64; 8]);

#[rustfmt::skip]
const CENTRE: Ratio = (
    [2_509.080_928_730_122_7, 33_430.575_583_588_13, 67_265.770_927_008_7, 45_921.953_931_549_87,
     13_731.693_765_509_46, 1_971.590_950_306_551_3, 133.141_667_891_784_38, 3.387_132_872_796_366_5],
    [5_226.495_278_852_545, 28_729.085_735_721_943, 39_307.895_800_092_71, 21_213.794_301_586_597,
     5_394.196_021_424_751, 687.187_007_492_057_9, 42.313_330_701_600_91, 1.0],
);

#[rustfmt::skip]
const SHOULDER: Ratio = (
    [7.745_450_142_783_414e-4, 2.272_384_498_926_918_4e-2, 0.241_780_725_177_450_6, 1.270_458_252_452_368_4,
     3.647_848_324_763_204_5, 5.769_497_221_460_691, 4.630_337_846_156_546, 1.423_437_110_749_683_5],
    [1.050_750_071_644_416_9e-9, 5.475_938_084_995_345e-4, 1.519_866_656_361_645_7e-2, 0.148_103_976_427_480_08,
     0.689_767_334_985_1, 1.676_384_830_183_803_8, 2.053_191_626_637_759, 1.0],
);

#[rustfmt::skip]
const TAIL: Ratio = (
    [2.010_334_399_292_288_1e-7, 2.711_555_568_743_487_6e-5, 1.242_660_947_388_078_4e-3, 2.653_218_952_657_612_4e-2,
     0.296_560_571_828_504_87, 1.784_826_539_917_291_3, 5.463_784_911_164_114, 6.657_904_643_501_103],
    [2.044_263_103_389_939_8e-15, 1.421_511_758_316_446e-7, 1.846_318_317_510_054_8e-5, 7.868_691_311_456_133e-4,
     1.487_536_129_085_061_5e-2, 0.136_929_880_922_735_8, 0.599_832_206_555_888, 1.0],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        for (p, z) in [
            (0.5, 0.0),
            (0.975, 1.959_963_985),
            (0.46, -0.100_433_721),
            (1e-9, -5.997_807_015),
            (1e-15, -7.941_345_326),
        ] {
            assert!((quantile(p) - z).abs() < 1e-8, "{p}: {}", quantile(p));
        }
    }

    #[test]
    fn the_quantile_inverts_the_distribution() {
        for step in -60..=60 {
            let x = f64::from(step) / 10.0;
            assert!((quantile(distribution(x)) - x).abs() < 1e-6, "{x}");
        }
    }
}
