-- The whole schema as it is after every migration. Types are SQLite's; Postgres gets its own for them.
-- Text compares by bytes on both, so keys page in the same order.

CREATE TABLE corral_schema (
    -- Servers of an older generation than this must not touch the database.
    needs INTEGER NOT NULL
);
INSERT INTO corral_schema (needs) VALUES (1);

CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    group_id TEXT,
    seed INTEGER,
    identity TEXT NOT NULL,
    manifest TEXT,
    generation INTEGER NOT NULL,
    shape TEXT NOT NULL,
    priority INTEGER NOT NULL,
    labels TEXT NOT NULL,
    submitted_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    world_size INTEGER NOT NULL,
    min_ranks INTEGER NOT NULL,
    elastic INTEGER NOT NULL,
    retry_infrastructure INTEGER NOT NULL,
    retry_memory INTEGER NOT NULL,
    retry_code INTEGER NOT NULL,
    wall_limit_s REAL,
    stall_limit_s REAL,
    grace_s REAL NOT NULL,
    state TEXT NOT NULL,
    hold_reason TEXT,
    not_before REAL,
    ready_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    reason TEXT,
    detail TEXT,
    exit_code INTEGER,
    signal INTEGER,
    attempt INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    used_infrastructure INTEGER NOT NULL,
    used_memory INTEGER NOT NULL,
    used_code INTEGER NOT NULL,
    ran_s REAL NOT NULL,
    stop_deadline REAL,
    stop_reason TEXT,
    last_host TEXT,
    artifact_id TEXT,
    metrics TEXT NOT NULL,
    event_n INTEGER NOT NULL,
    -- Whether it has log segments: retention must find those runs without reading all that ever ended.
    logged INTEGER NOT NULL DEFAULT 0,
    preemptible INTEGER NOT NULL DEFAULT 0,
    schedule_id TEXT,
    lost_hosts INTEGER NOT NULL DEFAULT 0,
    policy TEXT,
    -- What its leases that have ended cost, in dollars; NULL is unknown.
    cost REAL,
    -- When its last event was written; NULL of a run from before this was kept.
    updated_at REAL
);
-- SQLite looks up the state although the condition says it: with it here, the table is not touched.
CREATE INDEX runs_claim ON runs (shape, priority DESC, project, ready_at, id/*sqlite , state*/) WHERE state = 'queued';
CREATE INDEX runs_created ON runs (created_at, id);
CREATE INDEX runs_project ON runs (project, created_at, id);
CREATE INDEX runs_state ON runs (state, project, created_at, id);
CREATE INDEX runs_name ON runs (name, created_at, id);
CREATE INDEX runs_group ON runs (group_id, created_at, id) WHERE group_id IS NOT NULL;
CREATE INDEX runs_held ON runs (not_before) WHERE state = 'held' AND not_before IS NOT NULL;
CREATE INDEX runs_stop ON runs (stop_deadline) WHERE stop_deadline IS NOT NULL;
CREATE INDEX runs_wall ON runs (id) WHERE state = 'running' AND wall_limit_s IS NOT NULL;
CREATE INDEX runs_stall ON runs (id) WHERE state = 'running' AND stall_limit_s IS NOT NULL;
CREATE INDEX runs_logged ON runs (ended_at) WHERE logged = 1 AND ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_identity ON runs (project, manifest, identity, generation)
    WHERE manifest IS NOT NULL;
CREATE INDEX runs_manifest ON runs (project, manifest, id) WHERE manifest IS NOT NULL;
CREATE INDEX runs_waiting ON runs (group_id, hold_reason, ready_at, id) WHERE state = 'held';
CREATE INDEX runs_schedule ON runs (schedule_id, created_at, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX runs_preemptible ON runs (priority, id) WHERE state = 'running' AND preemptible = 1;
CREATE INDEX runs_held_id ON runs (id) WHERE state = 'held';
-- Who has a place in a group, and how many are in which state, without reading the runs.
CREATE INDEX runs_in_group ON runs (group_id, state, id) WHERE group_id IS NOT NULL;
-- Runs that may grow, without reading all that run.
CREATE INDEX runs_elastic ON runs (id) WHERE state = 'running' AND elastic = 1;
-- Who is left of a schedule, without reading all that ever ended.
CREATE INDEX runs_of_schedule ON runs (schedule_id, id) WHERE schedule_id IS NOT NULL
    AND state IN ('held', 'queued', 'placing', 'running', 'stopping', 'halting', 'yielding');

-- Apart from runs, so that an update of a run never rewrites its spec.
CREATE TABLE run_specs (
    run_id TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL
);

CREATE TABLE shapes (
    shape TEXT NOT NULL PRIMARY KEY,
    requirements TEXT NOT NULL
);

CREATE TABLE groups (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    max_running INTEGER
);
CREATE INDEX groups_name ON groups (name);
CREATE INDEX groups_created ON groups (created_at, id);

CREATE TABLE submissions (
    principal TEXT NOT NULL,
    request_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    group_id TEXT,
    run_ids TEXT NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (principal, request_id)
);

CREATE TABLE attempts (
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    opened_at REAL NOT NULL,
    closed_at REAL,
    PRIMARY KEY (run_id, number)
)/*sqlite  WITHOUT ROWID*/;

CREATE TABLE ranks (
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    state TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    lease_id TEXT,
    reason TEXT,
    exit_code INTEGER,
    -- How often it was started again.
    restarts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, attempt, rank)
)/*sqlite  WITHOUT ROWID*/;

CREATE TABLE leases (
    id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL,
    project TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    host_id TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    gpus TEXT NOT NULL,
    state TEXT NOT NULL,
    granted_at REAL NOT NULL,
    beaten_at REAL,
    expires_at REAL NOT NULL,
    active_at REAL NOT NULL,
    closed_at REAL,
    outcome TEXT,
    outcome_digest TEXT,
    outcome_answer TEXT,
    progress TEXT NOT NULL,
    sample TEXT NOT NULL,
    event_seq INTEGER NOT NULL,
    log_bytes INTEGER NOT NULL,
    gpu_bytes INTEGER,
    -- In dollars; NULL is unknown.
    price_per_hour REAL
);
CREATE INDEX leases_expiry ON leases (expires_at) WHERE state = 'live';
CREATE INDEX leases_host ON leases (host_id) WHERE state = 'live';
CREATE INDEX leases_project ON leases (project, gpus, granted_at) WHERE state = 'live';
-- The promise itself: at most one live lease per rank.
CREATE UNIQUE INDEX leases_one_live ON leases (run_id, rank) WHERE state = 'live';

CREATE TABLE hosts (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    capability TEXT,
    capability_digest TEXT,
    slots INTEGER NOT NULL,
    boot_id TEXT,
    draining INTEGER NOT NULL,
    last_seen_at REAL,
    created_at REAL NOT NULL,
    declared TEXT,
    declared_digest TEXT,
    declared_by TEXT,
    revoked_at REAL,
    strikes INTEGER NOT NULL DEFAULT 0,
    set_aside_until REAL,
    set_aside_why TEXT,
    struck_by TEXT
);
CREATE UNIQUE INDEX hosts_name ON hosts (name);

CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    project TEXT,
    host_id TEXT,
    created_at REAL NOT NULL,
    expires_at REAL,
    revoked_at REAL,
    used_at REAL,
    labels TEXT,
    used_by TEXT,
    run_id TEXT,
    endpoint_id TEXT
);
CREATE INDEX tokens_host ON tokens (host_id, id) WHERE host_id IS NOT NULL;
CREATE INDEX tokens_run ON tokens (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX tokens_endpoint ON tokens (endpoint_id, id) WHERE endpoint_id IS NOT NULL;

CREATE TABLE secrets (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    ciphertext TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE TABLE blobs (
    project TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    created_at REAL NOT NULL,
    condemned_at REAL,
    -- Set (to created_at) while it may have neither manifest nor pin: collection looks only at these.
    loose_at REAL,
    PRIMARY KEY (project, digest)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX blobs_digest ON blobs (digest);
CREATE INDEX blobs_loose ON blobs (loose_at) WHERE loose_at IS NOT NULL AND condemned_at IS NULL;
CREATE INDEX blobs_condemned ON blobs (condemned_at) WHERE condemned_at IS NOT NULL;

CREATE TABLE pins (
    project TEXT NOT NULL,
    digest TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at REAL,
    PRIMARY KEY (project, digest, holder)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX pins_expiry ON pins (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX pins_holder ON pins (holder);

CREATE TABLE artifacts (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    kind TEXT NOT NULL,
    digest TEXT NOT NULL,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    run_id TEXT,
    attempt INTEGER,
    rank INTEGER,
    epoch INTEGER,
    host_id TEXT,
    step INTEGER,
    metric REAL,
    meta TEXT NOT NULL,
    pinned INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL
);
CREATE INDEX artifacts_run ON artifacts (run_id, created_at, id) WHERE run_id IS NOT NULL;
CREATE INDEX artifacts_created ON artifacts (created_at, id);
CREATE INDEX artifacts_project ON artifacts (project, created_at, id);
CREATE INDEX artifacts_digest ON artifacts (project, kind, digest);
CREATE INDEX artifacts_uploads ON artifacts (created_at, id) WHERE run_id IS NULL;

CREATE TABLE artifact_files (
    artifact_id TEXT NOT NULL,
    path TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    PRIMARY KEY (artifact_id, path)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX artifact_files_digest ON artifact_files (digest, artifact_id);

CREATE TABLE run_inputs (
    run_id TEXT NOT NULL,
    artifact_id TEXT NOT NULL,
    PRIMARY KEY (run_id, artifact_id)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX run_inputs_artifact ON run_inputs (artifact_id);

CREATE TABLE events (
    /*sqlite seq INTEGER NOT NULL PRIMARY KEY,*/
    /*pg seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,*/
    -- The transaction that wrote it: the feed waits for all before it, so that a late one is not skipped.
    /*pg xid BIGINT NOT NULL DEFAULT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT),*/
    run_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    at REAL NOT NULL,
    type TEXT NOT NULL,
    actor TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE UNIQUE INDEX events_run ON events (run_id, n);
/*pg CREATE INDEX events_feed ON events (xid, seq);*/

CREATE TABLE segments (
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    stream TEXT NOT NULL,
    n INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    records INTEGER NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (run_id, attempt, rank, stream, n)
)/*sqlite  WITHOUT ROWID*/;

CREATE TABLE objects (
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    etag TEXT NOT NULL,
    body BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (run_id, key)
);

CREATE TABLE usage (
    project TEXT NOT NULL PRIMARY KEY,
    used_s REAL NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE loops (
    loop TEXT NOT NULL PRIMARY KEY,
    at REAL NOT NULL
);

-- What a run waits for. `input` names the input that the parent's artifact becomes; `on_failure` says what
-- becomes of the run if the parent does not succeed.
CREATE TABLE run_parents (
    run_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    input TEXT,
    on_failure TEXT NOT NULL,
    PRIMARY KEY (run_id, parent_id)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX run_parents_parent ON run_parents (parent_id);

-- Runs that ended with more children than one transaction settles; the sweeper goes on after `after_id`.
CREATE TABLE unsettled (
    run_id TEXT NOT NULL PRIMARY KEY,
    after_id TEXT NOT NULL
);

CREATE TABLE manifests (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    digest TEXT NOT NULL,
    revision INTEGER NOT NULL,
    applied_at REAL NOT NULL,
    applied_by TEXT NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE TABLE schedules (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    cron TEXT,
    every_s REAL,
    timezone TEXT NOT NULL,
    missed TEXT NOT NULL,
    overlap TEXT NOT NULL,
    paused INTEGER NOT NULL,
    next_at REAL,
    last_at REAL,
    last_run TEXT,
    fired INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    -- Why its last time made no run.
    problem TEXT,
    -- What the clock said when next_at was worked out: if it says less now, it was set back.
    counted_at REAL
);
CREATE UNIQUE INDEX schedules_name ON schedules (project, name);
CREATE INDEX schedules_counted ON schedules (counted_at) WHERE counted_at IS NOT NULL;
CREATE INDEX schedules_due ON schedules (next_at) WHERE paused = 0 AND next_at IS NOT NULL;

-- What a project may use at once or in a month; NULL is without limit.
CREATE TABLE quotas (
    project TEXT NOT NULL PRIMARY KEY,
    max_running INTEGER,
    max_gpus INTEGER,
    max_queued INTEGER,
    max_bytes INTEGER,
    gpu_hours INTEGER,
    weight REAL NOT NULL,
    updated_at REAL NOT NULL,
    updated_by TEXT NOT NULL
);

-- What closed leases used, by calendar month (UTC, `2026-11`).
CREATE TABLE hours (
    project TEXT NOT NULL,
    month TEXT NOT NULL,
    slot_s REAL NOT NULL,
    gpu_s REAL NOT NULL,
    PRIMARY KEY (project, month)
)/*sqlite  WITHOUT ROWID*/;

-- What operators and users did to anything that is not a run. Each row carries the hash of the one before.
CREATE TABLE audit (
    n INTEGER NOT NULL PRIMARY KEY,
    at REAL NOT NULL,
    actor TEXT NOT NULL,
    origin TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    data TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE INDEX audit_target ON audit (target, n);

CREATE TABLE webhooks (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    format TEXT NOT NULL,
    events TEXT NOT NULL,
    secret TEXT NOT NULL,
    cursor TEXT NOT NULL,
    paused INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    -- While a new secret is handed out, what is sent is signed with the one before as well.
    old_secret TEXT,
    old_secret_until REAL
);
CREATE UNIQUE INDEX webhooks_name ON webhooks (name);

CREATE TABLE deliveries (
    id TEXT NOT NULL PRIMARY KEY,
    webhook_id TEXT NOT NULL,
    event TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_at REAL,
    status INTEGER,
    detail TEXT,
    created_at REAL NOT NULL,
    ended_at REAL
);
CREATE INDEX deliveries_due ON deliveries (webhook_id, next_at) WHERE state = 'waiting';
CREATE INDEX deliveries_webhook ON deliveries (webhook_id, created_at, id);
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- How many bytes a project has is counted from this alone.
CREATE INDEX blobs_project ON blobs (project, size);
-- The count, of projects whose quota asks for it.
CREATE TABLE project_bytes (
    project TEXT NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL
);
-- Runs that were removed and whose log files the collector has yet to delete.
CREATE TABLE removed_logs (
    run_id TEXT NOT NULL PRIMARY KEY
);

-- A deployed function, class or web app. `current` is the version that new calls get.
CREATE TABLE endpoints (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Made by a call from a program and not by a deploy; goes away when nobody calls any more.
    live INTEGER NOT NULL,
    current INTEGER NOT NULL,
    scaling TEXT NOT NULL,
    stopped INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    called_at REAL NOT NULL,
    public INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX endpoints_name ON endpoints (project, name);

CREATE TABLE endpoint_versions (
    endpoint_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    spec TEXT NOT NULL,
    functions TEXT NOT NULL,
    state TEXT NOT NULL,
    detail TEXT,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (endpoint_id, version)
);

-- The service runs of an endpoint. `pool` tells instances of a class with other parameters apart.
CREATE TABLE instances (
    run_id TEXT NOT NULL PRIMARY KEY,
    endpoint_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    pool TEXT NOT NULL,
    ready_at REAL,
    created_at REAL NOT NULL
);
CREATE INDEX instances_endpoint ON instances (endpoint_id, version, pool);

-- The parameters of a class's pool, as they were given first.
CREATE TABLE pools (
    endpoint_id TEXT NOT NULL,
    pool TEXT NOT NULL,
    format TEXT NOT NULL,
    params BLOB NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (endpoint_id, pool)
);

CREATE TABLE calls (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    endpoint_id TEXT NOT NULL,
    -- 0 is whichever version serves.
    version INTEGER NOT NULL,
    pool TEXT NOT NULL,
    function TEXT NOT NULL,
    priority INTEGER NOT NULL,
    key TEXT,
    parent_id TEXT,
    depth INTEGER NOT NULL,
    submitted_by TEXT NOT NULL,
    options TEXT NOT NULL,
    args_format TEXT NOT NULL,
    args BLOB,
    args_blob TEXT,
    args_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    ready_at REAL NOT NULL,
    expires_at REAL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    lease_id TEXT,
    run_id TEXT,
    started_at REAL,
    ended_at REAL,
    ran_s REAL NOT NULL,
    result_format TEXT,
    result BLOB,
    result_blob TEXT,
    result_bytes INTEGER NOT NULL,
    error TEXT,
    chunks INTEGER NOT NULL,
    forget_at REAL
);
CREATE INDEX calls_queued ON calls (endpoint_id, version, pool, priority DESC, ready_at, id)
    WHERE state = 'queued';
CREATE INDEX calls_lease ON calls (lease_id) WHERE state = 'assigned';
CREATE UNIQUE INDEX calls_key ON calls (endpoint_id, key) WHERE key IS NOT NULL;
CREATE INDEX calls_created ON calls (created_at, id);
CREATE INDEX calls_expiry ON calls (expires_at) WHERE state = 'queued' AND expires_at IS NOT NULL;
CREATE INDEX calls_forget ON calls (forget_at) WHERE forget_at IS NOT NULL;
CREATE INDEX calls_dead ON calls (created_at, id) WHERE state IN ('failed', 'expired');

-- What a generator has given so far.
CREATE TABLE call_chunks (
    call_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    format TEXT NOT NULL,
    body BLOB,
    blob TEXT,
    PRIMARY KEY (call_id, n)
)/*sqlite  WITHOUT ROWID*/;

-- Named folders that are kept as snapshots. `head` is the newest.
CREATE TABLE volumes (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    head INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE TABLE volume_versions (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    artifact_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (project, name, version)
);

-- Uploads that are under way or broke off, of projects whose quota limits their bytes.
CREATE TABLE uploads (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (project, name)
);

-- What calls of such projects carry in the database: arguments, results, chunks, parameters.
CREATE TABLE payload_bytes (
    project TEXT NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL
);

-- Which installation the database belongs to; one row. `accepted` is how many runs were ever accepted, which a
-- note outside the database is compared with; it is counted on SQLite alone.
CREATE TABLE installation (
    id TEXT NOT NULL PRIMARY KEY,
    home TEXT NOT NULL,
    created_at REAL NOT NULL,
    accepted INTEGER NOT NULL
);

-- How busy a host was, the mean of each minute, as JSON.
CREATE TABLE host_samples (
    host_id TEXT NOT NULL,
    at REAL NOT NULL,
    sample TEXT NOT NULL,
    PRIMARY KEY (host_id, at)
)/*sqlite  WITHOUT ROWID*/;
CREATE INDEX host_samples_at ON host_samples (at);

-- Whose attempt the objects of a run are, how many they are and how many bytes they have.
CREATE TABLE object_counts (
    run_id TEXT NOT NULL PRIMARY KEY,
    attempt INTEGER NOT NULL,
    objects INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);

-- Objects that a run keeps over its attempts: names for blobs, which a pin of each holds.
CREATE TABLE kept_objects (
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    etag TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (run_id, key)
);

CREATE TABLE executors (
    name TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    options TEXT NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    removed_at REAL
);

CREATE TABLE placements (
    id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL,
    project TEXT NOT NULL,
    executor TEXT NOT NULL,
    ranks INTEGER NOT NULL,
    launch_key TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at REAL NOT NULL,
    sealed TEXT,
    handle TEXT,
    launched_at REAL,
    closed_at REAL,
    tries INTEGER NOT NULL,
    try_at REAL,
    seen TEXT,
    why TEXT,
    lost INTEGER NOT NULL,
    price_per_hour REAL,
    held_at REAL,
    chosen TEXT
);
CREATE UNIQUE INDEX placements_key ON placements (launch_key);
CREATE INDEX placements_run ON placements (run_id, created_at);
CREATE INDEX placements_open ON placements (id) WHERE state != 'closed';
