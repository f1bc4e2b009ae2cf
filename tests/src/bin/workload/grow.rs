//! The growth of memory: which regions, at which rate, up to which size.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use tests::stamps::{STEP, Writer};

use crate::cli::{CacheArgs, GrowthArgs, Kind};
use crate::pace::Pace;
use crate::region::{Anonymous, Pages, Region, SparseFile, WrittenFile};

/// Prepared regions, each with its share of the growth.
pub(crate) struct Growth {
    regions: Vec<Box<dyn Region>>,
    /// The bytes of each region.
    share: u64,
    /// The bytes of all regions.
    stop_at: u64,
    /// The rate of each region, bytes per second; 0 is unlimited.
    rate: u64,
    touched: u64,
}

impl Growth {
    pub(crate) fn prepare(grow: &GrowthArgs) -> Result<Self> {
        let GrowthArgs { kind, size, rate, stop_at, touch_first, threads, ref dir } = *grow;
        let stop_at = stop_at.unwrap_or(size);
        if stop_at > size {
            bail!("--stop-at {stop_at} is beyond --size {size}");
        }
        let files = matches!(kind, Kind::Tmpfs | Kind::PageCache);
        if files && threads > 1 {
            bail!("--threads is for memory, not for files");
        }
        let share = stop_at.div_ceil(u64::from(threads));
        let mut regions: Vec<Box<dyn Region>> = Vec::new();
        for _ in 0..threads {
            regions.push(match kind {
                Kind::Fresh => anonymous(share, Pages::Small, touch_first)?,
                Kind::Huge => anonymous(share, Pages::Huge, touch_first)?,
                Kind::Refault => {
                    let mut region = Anonymous::map(share, Pages::Small)?;
                    region.touch(0, share)?;
                    region.give_back()?;
                    Box::new(region)
                }
                Kind::Tmpfs => written(dir.as_deref().unwrap_or(Path::new("/dev/shm")), share, touch_first)?,
                Kind::PageCache => match dir {
                    Some(dir) => written(dir, share, touch_first)?,
                    None => written(&std::env::temp_dir(), share, touch_first)?,
                },
            });
        }
        Ok(Self {
            regions,
            share,
            stop_at,
            rate: match rate {
                0 => 0,
                rate => (rate / u64::from(threads)).max(1),
            },
            touched: 0,
        })
    }

    pub(crate) fn prepare_cache(cache: &CacheArgs) -> Result<Self> {
        let CacheArgs { size, rate, dir } = cache;
        let dir = dir.clone().unwrap_or_else(std::env::temp_dir);
        Ok(Self {
            regions: vec![Box::new(SparseFile::create(&dir, *size, STEP)?)],
            share: *size,
            stop_at: *size,
            rate: *rate,
            touched: 0,
        })
    }

    /// Touches everything once, at the rate.
    pub(crate) fn run(mut self, stamps: Writer) -> Result<Self> {
        let total = AtomicU64::new(0);
        let (share, stop_at, rate) = (self.share, self.stop_at, self.rate);
        let touch = |region: &mut Box<dyn Region>| -> Result<()> {
            let pace = Pace::new(rate);
            let mut done = 0;
            while done < share {
                let len = STEP.min(share - done);
                region.touch(done, len)?;
                done += len;
                // Shares are rounded up; the requested size is the maximum that is reported.
                let all = total.fetch_add(len, Ordering::Relaxed) + len;
                stamps.stamp(all.min(stop_at));
                pace.wait(done);
            }
            Ok(())
        };
        match self.regions.as_mut_slice() {
            [region] => touch(region)?,
            regions => std::thread::scope(|scope| {
                let touch = &touch;
                let workers: Vec<_> =
                    regions.iter_mut().map(|region| scope.spawn(move || touch(region))).collect();
                workers.into_iter().try_for_each(|worker| match worker.join() {
                    Ok(result) => result,
                    Err(_) => bail!("a growing thread panicked"),
                })
            })?,
        }
        stamps.done();
        self.touched = total.into_inner().min(stop_at);
        Ok(self)
    }

    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }
}

fn anonymous(len: u64, pages: Pages, touch_first: bool) -> Result<Box<dyn Region>> {
    if touch_first {
        // It is unmapped with its page tables, so that the pages that follow are as fresh as before.
        Anonymous::map(len, pages)?.touch(0, len)?;
    }
    Ok(Box::new(Anonymous::map(len, pages)?))
}

fn written(dir: &Path, len: u64, touch_first: bool) -> Result<Box<dyn Region>> {
    let mut region = WrittenFile::create(dir, STEP)?;
    if touch_first {
        for offset in (0..len).step_by(STEP as usize) {
            region.touch(offset, STEP.min(len - offset))?;
        }
        region.give_back().context("give back what was touched first")?;
    }
    Ok(Box::new(region))
}
