//! A code listing of `docs/book`: reads the gradient noise scale of a training from its step reports.

use stageline::{Batch, BoxError, NoiseAverage};

use crate::model::{column, pipeline};

// ANCHOR: listing
#[test]
fn the_noise_scale_is_in_the_reports() -> Result<(), BoxError> {
    let mut pipeline = pipeline().micro_batches(4).noise_every(1).build()?;
    let mut average = NoiseAverage::over(20.0);
    let mut scales = Vec::new();
    for step in 0..100_u32 {
        // Noisy observations of y = 2 x.
        let x = std::array::from_fn::<f32, 8, _>(|at| at as f32 - 3.5);
        let noise = |at: usize| ((step * 8 + at as u32).wrapping_mul(2_654_435_761) >> 24) as f32 / 128.0 - 1.0;
        let wanted = std::array::from_fn::<f32, 8, _>(|at| 2.0 * x[at] + noise(at));
        let report = pipeline.step(Batch::new(column(x), (column(wanted), column([1.0; 8]))))?;
        let noise = report.noise.ok_or("every step measures the noise of its gradient")?;
        scales.push(average.add(noise.total).scale());
    }
    // The first gradients point to the fit, and a batch of 8 rows shows it. After 100 steps, what is left of the
    // gradient is mostly noise, from which the gradient may not even be told.
    assert!(scales[2].is_some_and(|scale| scale < 8.0) && scales[99].is_none_or(|scale| scale > 8.0));
    Ok(())
}
// ANCHOR_END: listing
