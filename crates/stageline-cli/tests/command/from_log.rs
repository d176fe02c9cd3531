//! Tests `predict`, `search --from`, `advise` and `page` on the log of a run.

use std::fs;

use crate::logs::{LOG, by_hand, log_of_chunks, log_of_equal, log_of_four, searched, write};
use crate::{error, json, text};

#[test]
fn predict_advise_and_page_read_the_log_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (log, html) = (folder.path().join("run.jsonl"), folder.path().join("run.html"));
    fs::write(&log, LOG).unwrap();
    let (log, html) = (log.display(), html.display());

    // The step takes (M + P - 1) (F + B), and the bubble is (P - 1) / (M + P - 1).
    let predicted = json(&format!("predict --from {log} --micro-batches 8 --json"));
    assert_eq!((predicted["step_seconds"].as_f64(), predicted["own_step_error"].as_f64()), (Some(27.0), Some(0.0)));
    assert!((predicted["bubble"].as_f64().unwrap() - 1.0 / 9.0).abs() < 1e-12);
    assert_eq!(predicted["layers"], serde_json::json!([["front"], ["back"]]));
    assert!(text(&format!("predict --from {log}")).contains("the run itself is simulated 0.0% off"));

    let advice = text(&format!("advise --from {log} --bubble 0.2"));
    assert!(
        advice.contains("\na bubble of at most 20.0% needs M = 4 or more under 1f1b at P = 2: 20.0%, "),
        "{advice}"
    );
    assert!(advice.contains("main cause of idle time: filling and draining the pipeline"), "{advice}");
    assert!(
        advice.contains("\nthe partition as flags of a training: --stages 2 --schedule 1f1b --cut 0,1\n"),
        "{advice}"
    );

    let unknown = error(&format!("advise --from {log} --bandwidth 1"));
    assert!(unknown.contains("does not say how many bytes cross between stages"), "{unknown}");
    let crossing = folder.path().join("crossing.jsonl");
    fs::write(&crossing, LOG.replace("\"send_activation\":0", "\"send_activation\":0,\"output_bytes\":2e9")).unwrap();
    let crossing = crossing.display();
    let advice = text(&format!("advise --from {crossing} --bandwidth 100 --latency 5"));
    assert!(
        advice.contains("0 to 1    100.0000    5.000 ms     2000.000       50.000 ms     3000.000 ms  33.7%, fast"),
        "{advice}"
    );
    assert!(advice.contains("%, fast enough\nno links ") && !advice.contains("too slow"), "{advice}");
    let advice = text(&format!("advise --from {crossing} --bandwidth 2"));
    assert!(advice.contains("too slow for this split") && advice.contains("over these links zb-h1 has"), "{advice}");
    // The micro-batch takes F, a second on the link, F and B, a second back, and B.
    let linked = json(&format!("predict --from {crossing} --bandwidth 2 --micro-batches 1 --json"));
    assert_eq!(linked["step_seconds"].as_f64(), Some(1.0 + 1.0 + 3.0 + 1.0 + 2.0));
    assert!(error(&format!("advise --from {crossing} --latency 5")).contains("--bandwidth"));

    text(&format!("page --from {log} --html {html}"));
    let page = fs::read_to_string(folder.path().join("run.html")).unwrap();
    assert!(page.contains("<td>front</td>") && page.contains("<td>seed</td>"));
    // On a host with 2 cores, one worker would have both of them.
    let on_cores = LOG.replace(r#""seed":1}"#, r#""device":"cpu"},"machine":{"cores":2}"#);
    let [alone, own] = [1, 2].map(|stages| {
        let path = folder.path().join("cores.jsonl");
        fs::write(&path, &on_cores).unwrap();
        text(&format!("predict --from {} --stages {stages}", path.display()))
    });
    let expected = "2 cores are shared by the workers, and each has another part of them than in the log";
    assert!(alone.contains(expected) && !own.contains("cores"), "{alone}{own}");
    let refused = error(&format!("predict --from {log} --stages 3"));
    assert!(refused.contains("2 layers cannot be cut into 3 stages"), "{refused}");
}

#[test]
fn a_page_goes_to_the_standard_output_and_no_output_replaces_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", LOG);
    let html = folder.path().join("run.html").display().to_string();
    text(&format!("page --from {log} --html {html}"));
    let page = text(&format!("page --from {log} --html -"));
    assert_eq!(page, fs::read_to_string(&html).unwrap());
    assert!(!fs::exists("-").unwrap());
    let same = folder.path().join(".").join("run.jsonl");
    for path in [log.clone(), same.display().to_string()] {
        for command in [
            format!("page --from {log} --html {path}"),
            format!("search --stages 2 --micro-batches 4 --from {log} --csv {path}"),
            format!("search --stages 2 --micro-batches 4 --from {log} --svg {path}"),
        ] {
            let refused = error(&command);
            let expected = format!("{path}: the output would replace the file that is read; give another file");
            assert!(refused.contains(&expected), "{command}: {refused}");
            assert_eq!(fs::read_to_string(&log).unwrap(), LOG);
        }
    }
}

#[test]
fn the_search_takes_the_costs_and_the_layers_of_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let (log, csv) = (write(folder.path(), "run.jsonl", LOG), folder.path().join("plan.csv"));
    let csv = csv.display();
    let found = json(&format!("search --stages 2 --micro-batches 4 --from {log} --csv {csv} --json"));
    // The model has one layer for each of the two workers, so no plan with chunks is found.
    assert_eq!((found["stages"].as_u64(), &found["cut"]), (Some(2), &serde_json::json!([0, 1])));
    assert!(text(&format!("check {csv}")).contains(": 2 workers, 2 stages, 4 micro-batches,"));
    let costs = "--forward 1000 --input-grad 1000 --weight-grad 1000";
    let simulated = json(&format!("simulate --plan {csv} {costs} --json"));
    assert_eq!(found["step_ms"], simulated["step_ms"]);
    assert!(
        error(&format!("search --stages 3 --micro-batches 4 --from {log}")).contains("2 layers cannot be cut into 3")
    );

    // Twice as many layers as workers allow two chunks, and no more.
    let four = write(folder.path(), "four.jsonl", &log_of_four(""));
    let found = json(&format!("search --stages 2 --micro-batches 8 --from {four} --csv {csv} --json"));
    assert_eq!(found["cut"], serde_json::json!([0, 1, 2, 3]));
    let printed = text(&format!("search --stages 2 --micro-batches 8 --from {four}"));
    assert!(printed.contains("\ntraining       --stages 2 --micro-batches 8 --cut 0,1,2,3\n"), "{printed}");
    let costs = "--forward 2000 --input-grad 2000 --weight-grad 2000";
    let simulated = json(&format!("simulate --plan {csv} {costs} --json"));
    assert_eq!(found["step_ms"], simulated["step_ms"]);
    // The first layer takes as long as the three others, so it is a stage of its own.
    let uneven = log_of_four("").replacen(r#""forward":1,"backward":2"#, r#""forward":3,"backward":6"#, 1);
    let uneven = write(folder.path(), "uneven.jsonl", &uneven);
    let found = json(&format!("search --stages 2 --micro-batches 1 --from {uneven} --json"));
    assert_eq!((found["stages"].as_u64(), &found["cut"]), (Some(2), &serde_json::json!([0, 1])));
    // Without a log the layers are not known.
    let by_flags = json("search --stages 2 --micro-batches 4 --json");
    assert!(by_flags.get("cut").is_none() && by_flags.get("stages").is_none());
}

/// Tests that a search takes the times of transfers from the log, or from the flags if they are set. A step of four
/// workers and one micro-batch takes 9 s of computation, and the transfers in both directions.
#[test]
fn the_search_takes_the_links_of_a_log_unless_flags_replace_them() {
    let folder = tempfile::tempdir().unwrap();
    let links = r#""links":[null,{"latency":0.25,"bandwidth":1e9},null],"#;
    let log = write(folder.path(), "run.jsonl", &log_of_four(links));
    let step = |flags: &str| {
        let found = json(&format!("search --stages 4 --micro-batches 1 --from {log} --json {flags}"));
        found["step_ms"].as_f64().unwrap()
    };
    // The link carries 1 GB in each direction.
    assert_eq!(step(""), 9e3 + 2.0 * (250.0 + 1000.0));
    assert_eq!(step("--serialised"), 9e3 + 2.0 * (250.0 + 1000.0));
    assert_eq!(step("--transfer 0"), 9e3);
    assert_eq!(step("--transfer 100"), 9e3 + 6.0 * 100.0);
    assert_eq!(step("--transfer 100 --bytes 2e9 --bandwidth 1"), 9e3 + 6.0 * (100.0 + 2000.0));
    assert!(
        error(&format!("search --stages 4 --micro-batches 1 --from {log} --forward 2")).contains("cannot be used with")
    );
    assert!(
        error(&format!("search --stages 4 --micro-batches 1 --from {log} --transfer 1,2"))
            .contains("--transfer has 2 entries")
    );
    // The links of a run of four workers are not those of five.
    let five = write(
        folder.path(),
        "five.jsonl",
        &log_of_four(links).replacen(
            r#"{"name":"block 3","stage":3,"#,
            r#"{"name":"block 4","stage":3,"weight":1,"parameters":5},{"name":"block 3","stage":3,"#,
            1,
        ),
    );
    let unlinked = error(&format!("search --stages 5 --micro-batches 1 --from {five}"));
    assert!(
        unlinked.contains("the transfers between 5 workers: give --transfer, or --bytes with --bandwidth"),
        "{unlinked}"
    );
    assert!(
        json(&format!("search --stages 5 --micro-batches 1 --from {five} --transfer 1 --json"))["step_ms"].is_number()
    );
    // With three workers the layers are cut elsewhere, and the second and third worker still have the link.
    assert!(
        json(&format!("search --stages 3 --micro-batches 1 --from {log} --json"))["step_ms"].as_f64().unwrap() > 9e3
    );
}

/// Tests predictions from the log of a run whose plan was searched or read from a file. No schedule generates such a
/// plan for other numbers of workers and micro-batches. A prediction for other numbers is therefore refused, unless the
/// flags name a schedule.
#[test]
fn a_logged_plan_without_a_generator_predicts_its_own_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &searched(LOG));
    let own = json(&format!("predict --from {log} --json"));
    assert_eq!((own["schedule"].as_str(), own["step_seconds"].as_f64()), (Some("plan"), Some(9.0)));
    assert_eq!(json(&format!("predict --from {log} --stages 2 --micro-batches 2 --chunks 1 --json")), own);
    for other in ["--micro-batches 4", "--stages 1"] {
        let refused = error(&format!("predict --from {log} {other}"));
        assert!(
            refused.contains("made for P = 2 and M = 2 alone")
                && refused.contains("--schedule NAME, or --schedule search"),
            "{refused}"
        );
    }
    assert!(error(&format!("predict --from {log} --chunks 2")).contains("leave --chunks out, or name a schedule"));
    assert_eq!(json(&format!("predict --from {log} --schedule 1f1b --micro-batches 8 --json"))["step_seconds"], 27.0);

    // A search has the measured costs and the layers of the log.
    let searched = json(&format!("predict --from {log} --schedule search --micro-batches 4 --json"));
    let found = json(&format!("search --from {log} --stages 2 --micro-batches 4 --json"));
    assert_eq!(searched["step_seconds"].as_f64().unwrap(), found["step_ms"].as_f64().unwrap() / 1e3);
    assert_eq!(searched["schedule"], format!("search ({})", found["schedule"].as_str().unwrap()));
    assert!(error(&format!("predict --from {log} --schedule search --chunks 2")).contains("leave --chunks out"));

    let advice = text(&format!("advise --from {log}"));
    assert!(
        advice.contains("\nthe plan of the log, with a bubble of 33.3%, was made for M = 2 and P = 2 alone; give"),
        "{advice}"
    );
    let without_file = "as flags of a training: --stages 2 --cut 0,1\nthe log does not name the file of its plan";
    assert!(advice.contains(without_file), "{advice}");
    assert!(error(&format!("advise --from {log} --stages 1")).contains("--schedule NAME"));
    let refused = error(&format!("advise --from {log} --schedule search"));
    assert!(refused.contains("stageline search --from"), "{refused}");
}

/// Tests that a log cannot control the terminal through the names of its layers and its schedule. Letters of all
/// scripts stay as they are.
#[test]
fn names_from_a_log_are_printed_with_escapes() {
    let folder = tempfile::tempdir().unwrap();
    let named = LOG.replace("\"front\"", r#""\u001b[2Jfr\u00f6nt\u202e""#);
    for (log, schedule) in [(&named, "1f1b"), (&named.replace("\"1f1b\"", r#""\u001b[2Jplan""#), r"\u{1b}[2Jplan")] {
        let log = write(folder.path(), "run.jsonl", log);
        for command in ["predict", "advise"] {
            let printed = text(&format!("{command} --from {log}"));
            assert!(!printed.contains(['\u{1b}', '\u{202e}']), "{printed:?}");
            assert!(printed.contains(r"\u{1b}[2Jfrönt\u{202e}"), "{printed}");
        }
        assert!(text(&format!("predict --from {log}")).starts_with(&format!("{schedule}, P = 2")));
    }
}

/// Tests that the schedule of the logged run has its number of chunks V in the run by default, also if a flag names it,
/// and that the output states V. Another schedule has its own default.
#[test]
fn the_schedule_of_the_run_keeps_its_number_of_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &log_of_chunks());
    let predict = format!("predict --from {log} --micro-batches 8");
    let own = json(&format!("{predict} --json"));
    // A step takes the 8 x 4 forwards and backwards of a worker, and those of the P - 1 chunks that fill and drain.
    assert_eq!((own["chunks"].as_u64(), own["step_seconds"].as_f64()), (Some(4), Some((8.0 * 4.0 + 1.0) * 3.0)));
    assert_eq!(json(&format!("{predict} --schedule interleaved --json")), own);
    assert!(text(&predict).starts_with("interleaved, P = 2, V = 4, M = 8\n"));
    assert_eq!(json(&format!("{predict} --schedule interleaved --chunks 2 --json"))["chunks"], 2);
    for (other, chunks) in [("zb-v", 2), ("1f1b", 1)] {
        assert_eq!(json(&format!("{predict} --schedule {other} --json"))["chunks"], chunks);
    }
    for named in ["", " --schedule interleaved"] {
        let advice = text(&format!("advise --from {log}{named} --bubble 0.1"));
        // The bubble is 1 / (4 M + 1), and M is even.
        assert!(advice.contains("needs M = 4 or more under interleaved with V = 4 at P = 2: 5.9%"), "{advice}");
    }
}

/// Tests predictions for searched plans, from the log of a run whose channels are too small for the best plan. The plan
/// of a prediction runs with the channels of the run, or those of the flag. It is the best plan if these are large
/// enough.
#[test]
fn a_searched_plan_runs_with_the_channels_of_the_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let link = r#"{"latency":0.5,"bandwidth":1e10}"#;
    let log = log_of_equal(4, &format!(r#""links":[{link},{link},{link}],"#));
    let log = log.replace(r#""channel_capacity":2"#, r#""channel_capacity":1"#);
    let log = write(folder.path(), "run.jsonl", &log);
    let predict = format!("predict --from {log} --schedule search --micro-batches 8");
    let seconds = |flags: &str| json(&format!("{flags} --json"))["step_seconds"].as_f64().unwrap();
    let found = json(&format!("search --from {log} --stages 4 --micro-batches 8 --json"));
    let (best, least) = (found["step_ms"].as_f64().unwrap() / 1e3, found["capacity"].as_u64().unwrap());
    assert!(least > 1, "{found}");
    assert!((seconds(&format!("{predict} --channel-capacity {least}")) - best).abs() < 1e-9);
    for smaller in [predict.clone(), format!("{predict} --channel-capacity {}", least - 1)] {
        assert!(seconds(&smaller) >= best - 1e-9, "{smaller}");
    }
    // The search has 1F1B among its plans, which runs with the smallest channels.
    assert!(seconds(&predict) <= seconds(&format!("predict --from {log} --schedule 1f1b --micro-batches 8")));
    assert!(error(&format!("{predict} --channel-capacity 0")).contains("--channel-capacity"));
}

/// Tests predictions for a model that the user has cut into four stages by hand. A prediction for two stages joins
/// these stages. It is printed as a what-if, because the user would have to change the model's program. A prediction
/// for five stages would divide a stage, and is refused.
#[test]
fn joined_stages_of_a_model_that_is_cut_by_hand_are_a_what_if() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &by_hand(&log_of_four("")));
    let predict = format!("predict --from {log} --micro-batches 8");
    let two = json(&format!("{predict} --stages 2 --json"));
    // A stage of two takes 2 s and 4 s, and a step of 1F1B M + P - 1 = 9 times both.
    assert_eq!((two["joined_stages"].as_u64(), two["step_seconds"].as_f64()), (Some(4), Some(9.0 * 6.0)));
    let said = text(&format!("{predict} --stages 2"));
    let what_if = "\nwhat if        the program of this model, which is cut by hand into 4 stages, joins them into 2; ";
    assert!(said.contains(what_if), "{said}");
    // Two workers with two stages each join none.
    for kept in ["", " --schedule interleaved --stages 2"] {
        assert!(json(&format!("{predict}{kept} --json"))["joined_stages"].is_null());
        assert!(!text(&format!("{predict}{kept}")).contains("what if"));
    }
    let by_training = write(folder.path(), "row.jsonl", &log_of_four(""));
    assert!(!text(&format!("predict --from {by_training} --stages 2")).contains("what if"));
    let refused = error(&format!("{predict} --stages 5"));
    assert!(refused.contains("cut by hand into 4 stages, and the plan has 5: "), "{refused}");
}

/// Tests the commands on the log of a run whose first worker has two of three stages. No schedule generates its plan.
#[test]
fn a_plan_with_unequal_numbers_of_stages_is_compared_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let plan = r"0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,2B0,2F1,2B1\n";
    let equal = log_of_equal(3, "");
    let own = equal.split(r#""plan":""#).nth(1).unwrap().split('"').next().unwrap();
    let log = write(folder.path(), "run.jsonl", &searched(&equal).replace(own, plan));
    let predicted = json(&format!("predict --from {log} --json"));
    assert_eq!((predicted["stages"].as_u64(), predicted["peak_live"].clone()), (Some(2), serde_json::json!([4, 1])));
    assert_eq!(predicted["layers"], serde_json::json!([["block 0"], ["block 1"], ["block 2"]]));
    let advice = text(&format!("advise --from {log}"));
    assert!(advice.contains("%, was made for M = 2 and P = 2 alone; give --schedule NAME"), "{advice}");
    assert!(advice.contains("as flags of a training: --stages 2 --cut 0,1,2\n"), "{advice}");
    for other in ["--stages 3", "--micro-batches 4"] {
        let refused = error(&format!("predict --from {log} {other}"));
        assert!(refused.contains("was made for P = 2 and M = 2 alone"), "{refused}");
        assert!(refused.contains("; give --schedule NAME, or --schedule search to search"), "{refused}");
    }
    // `advise` compares many M, so it has no search for the plan of one.
    let refused = error(&format!("advise --from {log} --stages 3"));
    assert!(refused.ends_with("generates it for P = 3 and M = 2; give --schedule NAME\n"), "{refused}");
    let refused = error(&format!("predict --from {log} --chunks 1"));
    assert!(refused.contains("has 3 stages on 2 workers") && refused.contains("leave --chunks out"), "{refused}");
    assert_eq!(json(&format!("predict --from {log} --schedule 1f1b --json"))["stages"], 2);
}

/// Tests that `advise` refuses to simulate the plans for so many numbers of micro-batches that it would run for
/// minutes. The number that it proposes instead is accepted.
#[test]
fn plans_that_would_take_too_long_to_search_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", LOG);
    let refused = error(&format!("advise --from {log} --bubble 0 --most 8000"));
    assert!(refused.contains("plans of 2 stages for every M up to 8000 are too many to simulate"), "{refused}");
    // The time grows with 2 M^2, of which 100 million are allowed.
    assert!(refused.ends_with("; give --most 7071 or less\n"), "{refused}");
    assert!(text(&format!("advise --from {log} --bubble 0.2 --most 7071")).contains("needs M = 4 or more"));
}

/// Tests that --most is at most 512 unless it is given, and fewer for so many stages that 512 would be refused.
#[test]
fn the_default_of_most_is_never_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", LOG);
    assert!(text(&format!("advise --from {log} --bubble 0")).contains("no M up to 512 has a bubble of at most 0.0%"));
    let deep = write(folder.path(), "deep.jsonl", &log_of_equal(400, ""));
    let refused = error(&format!("advise --from {deep} --most 501"));
    assert!(
        refused.ends_with("for every M up to 501 are too many to simulate; give --most 500 or less\n"),
        "{refused}"
    );
    let advice = text(&format!("advise --from {deep} --bubble 0.99"));
    assert!(advice.contains("a bubble of at most 99.0% needs M = 5 or more under 1f1b at P = 400: "), "{advice}");
}

#[test]
fn a_bubble_that_is_no_share_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", LOG);
    for bubble in ["-0.1", "1", "nan"] {
        let refused = error(&format!("advise --from {log} --bubble {bubble}"));
        assert!(refused.contains("give a share, at least 0 and less than 1"), "{refused}");
    }
}

#[test]
fn plans_that_would_take_too_much_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &log_of_four(""));
    for asked in [
        "predict --micro-batches 1000000000000",
        "predict --stages 1000000000000",
        "predict --stages 18446744073709551615 --schedule interleaved",
        "advise --most 1000000000000",
        "advise --stages 18446744073709551615",
        "advise --hosts 18446744073709551615,2 --bandwidth 1",
        "advise --hosts 1000000000000,2 --bandwidth 1",
    ] {
        let refused = error(&format!("{asked} --from {log}"));
        assert!(refused.contains(" are more than the limit of 100000000; ask for fewer"), "{asked}: {refused}");
    }
}
