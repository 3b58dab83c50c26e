//! The real input: the departures of the compressed CSV file, as they are.

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;

/// Every departure from New York's airports in 2013 (`data/README.md`), part of the program.
pub static NYC_FLIGHTS_2013: &[u8] = include_bytes!("../data/nyc-flights-2013.csv.gz");

/// One real departure.
#[derive(Debug, Clone, Copy)]
pub struct Departure {
    /// Its line in the file, from 1: the same flight has the same id however many are imported.
    pub flight_id: i64,
    pub date: Code<10>,
    pub carrier: Code<2>,
    pub number: u16,
    pub origin: Code<3>,
    pub destination: Code<3>,
    /// Scheduled, HHMM.
    pub time: u16,
    /// As in the aircraft registry; missing for tail numbers that it does not have.
    pub seats: Option<u16>,
    pub miles: u16,
    pub departed: bool,
}

/// A short ASCII text of fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code<const N: usize>([u8; N]);

impl<const N: usize> Code<N> {
    fn parse(bytes: &[u8]) -> Result<Self> {
        ensure!(bytes.is_ascii(), "not ASCII");
        Ok(Self(bytes.try_into().with_context(|| format!("not {N} characters"))?))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a code is parsed from ASCII only")
    }

    pub fn number(&self) -> u64 {
        self.0.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

/// Reads all departures of a gzipped CSV file.
pub fn read(compressed: &[u8]) -> Result<Vec<Departure>> {
    let mut reader = csv::Reader::from_reader(GzDecoder::new(compressed));
    let mut departures = Vec::with_capacity(340_000);
    let mut record = csv::ByteRecord::new();
    while reader.read_byte_record(&mut record).context("reading the flights")? {
        let flight_id = departures.len() as i64 + 1;
        departures.push(parse(flight_id, &record).with_context(|| format!("reading flight {flight_id}"))?);
    }
    Ok(departures)
}

fn parse(flight_id: i64, record: &csv::ByteRecord) -> Result<Departure> {
    ensure!(record.len() == 9, "{} columns instead of 9", record.len());
    Ok(Departure {
        flight_id,
        date: Code::parse(&record[0])?,
        carrier: Code::parse(&record[1])?,
        number: number(&record[2])?,
        origin: Code::parse(&record[3])?,
        destination: Code::parse(&record[4])?,
        time: number(&record[5])?,
        seats: if record[6].is_empty() { None } else { Some(number(&record[6])?) },
        miles: number(&record[7])?,
        departed: &record[8] == b"1",
    })
}

fn number(bytes: &[u8]) -> Result<u16> {
    let text = std::str::from_utf8(bytes).context("not a number")?;
    text.parse().with_context(|| format!("not a number: {text:?}"))
}

/// `count` of the departures, spread evenly over the year, so that a small night has every season in it.
pub fn spread(departures: &[Departure], count: usize) -> Result<Vec<usize>> {
    let all = departures.len();
    ensure!((1..=all).contains(&count), "the data has {all} flights: 1 to {all} can be imported, not {count}");
    Ok((0..count).map(|i| i * all / count).collect())
}
