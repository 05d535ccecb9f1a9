-- Frozen: later changes are migrations of their own.

ALTER TABLE placements ADD COLUMN price_per_hour REAL;
ALTER TABLE placements ADD COLUMN held_at REAL;
ALTER TABLE placements ADD COLUMN chosen TEXT;
