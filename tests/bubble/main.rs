//! Tests of the bubble bench, which measures the idle share of pipelines: its files agree with each other and with
//! theory, on small pipelines.

use std::fs;
use std::path::Path;

use clap::Parser;
use serde_json::Value;
use stageline_workspace::bubble::{files, flags, measure, point, warm_up};

use crate::flags::Flags;
use crate::point::Point;
use crate::warm_up::{WarmUp, WarmedUp};

/// The allocator that counts allocated bytes, so that the bubble bench can report each worker's peak memory.
#[global_allocator]
static ALLOCATOR: stageline::CountingAllocator = stageline::CountingAllocator::new();

/// P, the number of workers in all pipelines of this test.
const P: usize = 2;

/// The files that the bubble bench writes: the lines of the CSV file, the points of the JSON file, the HTML page, the
/// Markdown table, and the names of the pictures.
struct Files {
    lines: Vec<Vec<String>>,
    points: Vec<Value>,
    html: String,
    markdown: String,
    pictures: Vec<String>,
}

fn measured(flags: &str, output: Option<&Path>) -> (Flags, Vec<Point>) {
    let arguments = ["bubble".to_owned()].into_iter().chain(flags.split_whitespace().map(str::to_owned));
    let output = output.map(|folder| format!("--output={}", folder.display()));
    let flags = Flags::parse_from(arguments.chain(output));
    let points = measure::measure(&flags, &flags.cases().unwrap()).into_iter().collect::<Result<_, _>>().unwrap();
    (flags, points)
}

/// Runs the bubble bench with the given flags, and reads the files that it writes.
fn written(flags: &str) -> Files {
    let folder = tempfile::tempdir().unwrap();
    // The bench creates its folder, together with a missing parent folder.
    let folder = folder.path().join("a/b");
    let (flags, points) = measured(flags, Some(&folder));
    files::write(&flags, &points).unwrap();
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut pictures: Vec<_> = names.filter(|name| name.ends_with(".svg")).collect();
    pictures.sort();
    for picture in &pictures {
        let svg = read(picture);
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"), "{svg}");
    }
    let lines = read("bubble.csv").lines().map(|line| line.split(',').map(str::to_owned).collect()).collect();
    Files {
        lines,
        points: serde_json::from_str(&read("bubble.json")).unwrap(),
        html: read("bubble.html"),
        markdown: read("bubble.md"),
        pictures,
    }
}

/// Runs the bubble bench under 1F1B and GPipe with M = 1 and M = 4. Asserts that its figures agree with theory, and
/// that its files agree with each other.
fn check(flags: &str, samples_per_micro_batch: f64) {
    let Files { lines, points, html, markdown, pictures } = written(flags);
    let cases: Vec<_> = ["1f1b", "gpipe"].into_iter().flat_map(|name| [1, 4].map(|m| (name, m))).collect();
    assert_eq!((points.len(), lines.len()), (cases.len(), 1 + cases.len()));
    for ((point, line), (schedule, micro_batches)) in points.iter().zip(&lines[1..]).zip(cases) {
        let figure = |name: &str| point[name].as_f64().unwrap_or_else(|| panic!("{name} of {point}"));
        assert_eq!((&point["schedule"], figure("micro_batches")), (&schedule.into(), micro_batches as f64));
        // With equal stages and free transfers, P - 1 of M + P - 1 slots are idle (Huang et al., 2019,
        // arXiv:1811.06965).
        let (p, m) = (P as f64, micro_batches as f64);
        assert!((figure("bubble_ideal") - (p - 1.0) / (m + p - 1.0)).abs() < 1e-9, "{point}");
        assert!((figure("throughput") * figure("step_seconds") / (m * samples_per_micro_batch) - 1.0).abs() < 1e-9);
        // GPipe keeps all M micro-batches live on the first stage, and 1F1B at most P (Narayanan et al., 2021).
        assert_eq!(figure("peak_live"), if schedule == "gpipe" { m } else { m.min(p) });
        assert!((0.0..1.0).contains(&figure("bubble")) && (0.0..1.0).contains(&figure("bubble_simulated")));
        let causes = point["idle_by_cause"].as_array().unwrap();
        let names: Vec<_> = causes.iter().map(|cause| cause[0].as_str().unwrap()).collect();
        assert_eq!(names, ["fill", "drain", "imbalance", "transfer", "flush", "asking", "other"]);
        assert!(figure("peak_bytes") > 0.0);
        assert!((3.0..=10.0).contains(&figure("warm_up_steps")) && figure("warm_up_spread") >= 0.0, "{point}");
        assert_eq!(point["clock"], "host clock");
        // The CSV file and the page have the same figures.
        for (column, text) in lines[0].iter().zip(line) {
            if let Some(cause) = column.strip_prefix("idle_") {
                let at = names.iter().position(|name| *name == cause).unwrap_or_else(|| panic!("{cause}"));
                let (found, expected): (f64, _) = (text.parse().unwrap(), causes[at][1].as_f64().unwrap());
                assert!((found - expected).abs() <= 1e-12, "{column}: {found}, {expected}");
                continue;
            }
            match &point[column] {
                Value::String(expected) => assert_eq!(text, expected, "{column}"),
                Value::Bool(expected) => assert_eq!(text.parse::<bool>(), Ok(*expected), "{column}"),
                Value::Null => panic!("{column} is not in the JSON file"),
                _ => {
                    let (found, expected): (f64, _) = (text.parse().unwrap(), figure(column));
                    // The JSON parser may round the last bit differently.
                    assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{column}: {found}, {expected}");
                }
            }
        }
        let cells = [format!("{:.4}", figure("bubble")), format!("{:.2}", 1e3 * figure("step_seconds"))];
        assert!(cells.iter().all(|cell| html.contains(&format!(">{cell}</td>"))), "{cells:?}");
        assert!(cells.iter().all(|cell| markdown.contains(&format!("| {cell} |"))), "{cells:?}");
        let away = figure("throughput_predicted") * figure("step_predicted_seconds") / (m * samples_per_micro_batch);
        assert!((away - 1.0).abs() < 1e-9, "{point}");
    }
    // With one measured step, the idle time by cause and the bubble belong to the same step, so the causes add up to
    // it.
    for point in &points {
        let causes: f64 =
            point["idle_by_cause"].as_array().unwrap().iter().map(|cause| cause[1].as_f64().unwrap()).sum();
        assert!((causes - point["bubble"].as_f64().unwrap()).abs() < 1e-6, "{causes} in {point}");
    }
    for title in ["Bubble", "Throughput", "Step time", "Live micro-batches", "Memory"] {
        assert_eq!(html.matches(&format!(">{title}, P = 2</text>")).count(), 1, "{title}: one for all schedules");
    }
    let expected = [
        "bubble-p2.svg",
        "idle-p2-1f1b.svg",
        "idle-p2-gpipe.svg",
        "live-p2.svg",
        "memory-p2.svg",
        "step-p2.svg",
        "throughput-p2.svg",
    ];
    assert_eq!(pictures, expected);
    assert!(html.contains("share of the total stage time, host clock"));
}

#[test]
fn paced_stages_write_tables_and_pictures() {
    check(
        "--kind paced --stages 2 --micro-batches 1,4 --schedules 1f1b,gpipe --rounds 1 --forward-ms 1 --backward-ms 2",
        1.0,
    );
}

#[test]
fn a_gpt_on_the_cpu_writes_tables_and_pictures() {
    let size = "--layers 2 --width 16 --context 8 --micro-batch-size 3";
    check(&format!("--kind cpu --stages 2 --micro-batches 1,4 --schedules 1f1b,gpipe --rounds 1 {size}"), 3.0 * 8.0);
}

#[test]
fn flags_out_of_range_are_errors_that_name_the_flag() {
    for (flags, expected) in [
        ("--rounds 0", "--rounds 0: measure at least 1 step"),
        ("--forward-ms -1", "--forward-ms -1: give 0 to 60000"),
        ("--schedules nothing", "nothing"),
        ("--batch 12 --micro-batches 4,8", "--batch 12: it cannot be divided into 8 equal micro-batches"),
        ("--batch 8 --micro-batch-size 2", "--batch"),
        ("--warm-up-steps 1", "--warm-up-steps 1: give at least 2 steps, whose times can agree"),
        ("--warm-up-steps 4 --warm-up-most 3", "--warm-up-most 3: give at least 4, the steps that must agree"),
        ("--warm-up-within -1", "--warm-up-within -1: give 0 or more"),
    ] {
        let arguments = ["bubble".to_owned()].into_iter().chain(flags.split(' ').map(str::to_owned));
        let error = match Flags::try_parse_from(arguments)
            .map_err(anyhow::Error::from)
            .and_then(|flags| flags.cases().map(drop))
        {
            Ok(()) => panic!("{flags}: accepted"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{flags}: {error}");
    }
}

/// Tests when the warm-up of a benchmark ends. It ends when the times of the last three steps agree, or after the
/// largest allowed number of steps. It also ends with the error of a failed step.
#[test]
fn a_warm_up_ends_when_step_times_agree() {
    let criterion = WarmUp { agreeing: 3, within: 0.1, most: 6 };
    let run = |times: &[f64]| {
        let mut times = times.iter().copied();
        criterion.run(|| times.next().ok_or("a step failed"))
    };
    // Two equal step times do not end the warm-up if a slow step follows.
    let ended = run(&[9.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]).unwrap();
    assert_eq!(ended, WarmedUp { steps: 6, spread: 1.0, settled: false });
    let ended = run(&[9.0, 4.0, 1.0, 1.05, 1.0, 7.0]).unwrap();
    assert!(ended.steps == 5 && ended.settled && (ended.spread - 0.05).abs() < 1e-12, "{ended:?}");
    assert_eq!(run(&[1.0, 1.0, 1.0]).unwrap(), WarmedUp { steps: 3, spread: 0.0, settled: true });
    assert_eq!(run(&[1.0, 2.0]), Err("a step failed"));
    let both =
        WarmedUp { steps: 3, spread: 0.0, settled: true }.and(WarmedUp { steps: 6, spread: 0.5, settled: false });
    assert_eq!(both, WarmedUp { steps: 6, spread: 0.5, settled: false });
}

#[test]
fn a_warm_up_that_does_not_settle_is_marked() {
    let flags = "--kind paced --stages 2 --micro-batches 1 --schedules 1f1b --rounds 1 --forward-ms 1 --backward-ms 2";
    // With a permitted spread of 0, no warm-up of real steps settles.
    let flags = format!("{flags} --warm-up-within 0 --warm-up-most 4");
    let (parsed, mut points) = measured(&flags, None);
    assert!(points[0].to_string().contains("     4*  host clock"), "{}", points[0]);
    let line = point::unsettled(parsed.warm_up(), &points).unwrap();
    assert_eq!(line, "* after 4 steps of warm-up, the times of the last 3 still differed by more than 0%");
    points[0].warm_up_settled = true;
    assert_eq!(point::unsettled(parsed.warm_up(), &points), None);
    assert_eq!(files::HEADER.find("bubble by"), points[0].to_string().find("host clock"));

    let Files { lines, points, html, markdown, .. } = written(&flags);
    let column = lines[0].iter().position(|column| column == "warm_up_settled").unwrap();
    assert_eq!((lines[1][column].as_str(), &points[0]["warm_up_settled"]), ("false", &false.into()));
    assert!(markdown.contains(" | 4* |\n") && markdown.ends_with(&format!("\n\n\\{line}\n")), "{markdown}");
    assert!(html.contains(">4*</td>") && html.contains(&format!(" {line}.")), "{html}");
}

#[test]
fn a_warm_up_that_settles_has_no_mark() {
    let flags = "--kind paced --stages 2 --micro-batches 1 --schedules 1f1b --rounds 1 --forward-ms 1 --backward-ms 2";
    // With a permitted spread this large, every warm-up settles.
    let Files { lines, markdown, html, .. } = written(&format!("{flags} --warm-up-within 1e9"));
    let column = lines[0].iter().position(|column| column == "warm_up_settled").unwrap();
    assert_eq!(lines[1][column], "true");
    assert!(!markdown.contains('*') && !html.contains("3*</td>") && markdown.contains(" | 3 |\n"), "{markdown}");
}

/// Tests the predicted step times of pipelines whose stages sleep instead of computing. Predictions only come near the
/// ideal time, because a sleep may be too long. This may happen in the step from which a prediction is made, or in the
/// step whose time scales it.
#[test]
fn predictions_are_made_for_every_schedule_and_size() {
    let flags = "--kind paced --stages 2 --schedules 1f1b,interleaved --rounds 1 --forward-ms 2 --backward-ms 4";
    for (sizes, of_batch) in [("--micro-batches 2,4,8", false), ("--micro-batches 2,4,8 --batch 8", true)] {
        let (_, points) = measured(&format!("{flags} {sizes}"), None);
        assert_eq!(points.len(), 6);
        for point in points {
            assert_eq!(point.micro_batch_size, if of_batch { 8 / point.micro_batches } else { 1 });
            let (predicted, ideal) = (point.step_predicted_seconds.unwrap(), point.step_ideal_seconds.unwrap());
            assert!(predicted > 0.5 * ideal, "{point}: {predicted}, {ideal}");
        }
    }
}

#[test]
fn overlapping_steps_have_no_prediction() {
    let flags =
        "--kind paced --stages 2 --micro-batches 2,4 --schedules zb-h2 --rounds 1 --forward-ms 1 --backward-ms 2";
    let (_, points) = measured(&format!("{flags} --overlap"), None);
    assert!(points.iter().all(|point| point.step_predicted_seconds.is_none() && point.throughput > 0.0));
}
