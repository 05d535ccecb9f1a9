-- Frozen: later changes are migrations of their own.

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
    logged INTEGER NOT NULL DEFAULT 0
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
    created_at REAL NOT NULL
);
CREATE INDEX groups_name ON groups (name);

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
    log_bytes INTEGER NOT NULL
);
CREATE INDEX leases_expiry ON leases (expires_at) WHERE state = 'live';
CREATE INDEX leases_host ON leases (host_id) WHERE state = 'live';
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
    created_at REAL NOT NULL
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
    revoked_at REAL
);

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
