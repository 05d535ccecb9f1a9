-- Frozen: later changes are migrations of their own.

ALTER TABLE runs ADD COLUMN preemptible INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN schedule_id TEXT;
ALTER TABLE runs ADD COLUMN lost_hosts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN policy TEXT;
ALTER TABLE groups ADD COLUMN max_running INTEGER;
ALTER TABLE leases ADD COLUMN gpu_bytes INTEGER;
ALTER TABLE hosts ADD COLUMN declared TEXT;
ALTER TABLE hosts ADD COLUMN declared_digest TEXT;
ALTER TABLE hosts ADD COLUMN declared_by TEXT;
ALTER TABLE hosts ADD COLUMN revoked_at REAL;
ALTER TABLE hosts ADD COLUMN strikes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN set_aside_until REAL;
ALTER TABLE hosts ADD COLUMN set_aside_why TEXT;
ALTER TABLE hosts ADD COLUMN struck_by TEXT;
ALTER TABLE tokens ADD COLUMN used_at REAL;
ALTER TABLE tokens ADD COLUMN labels TEXT;
ALTER TABLE tokens ADD COLUMN used_by TEXT;
CREATE INDEX tokens_host ON tokens (host_id, id) WHERE host_id IS NOT NULL;

CREATE INDEX groups_created ON groups (created_at, id);
CREATE INDEX runs_manifest ON runs (project, manifest, id) WHERE manifest IS NOT NULL;
CREATE INDEX runs_waiting ON runs (group_id, hold_reason, ready_at, id) WHERE state = 'held';
CREATE INDEX runs_schedule ON runs (schedule_id, created_at, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX runs_preemptible ON runs (priority, id) WHERE state = 'running' AND preemptible = 1;
CREATE INDEX runs_held_id ON runs (id) WHERE state = 'held';
-- Who has a place in a group, and how many are in which state, without reading the runs.
CREATE INDEX runs_in_group ON runs (group_id, state, id) WHERE group_id IS NOT NULL;
-- Who is left of a schedule, without reading all that ever ended.
CREATE INDEX runs_of_schedule ON runs (schedule_id, id) WHERE schedule_id IS NOT NULL
    AND state IN ('held', 'queued', 'placing', 'running', 'stopping', 'halting', 'yielding');
CREATE INDEX leases_project ON leases (project, gpus, granted_at) WHERE state = 'live';

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
INSERT INTO removed_logs (run_id)
    SELECT DISTINCT s.run_id FROM segments AS s WHERE NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.id = s.run_id);
