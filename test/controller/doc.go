// Package controller tests the built controller against a real API server and a real Redis, under exactly the
// permissions that config/rbac renders.
//
// Which test holds the operator to which fault that real systems had:
//
//	B49 deletion       TestANamespaceGoesWithoutRedis
//	B51 loops          TestAnIdleClusterWritesNothing; WEIR_IDLE=10m for ten real minutes at the usual resync
//	                   controllers: TestLastTransitionTimeMovesOnlyWhenTheStatusFlips
//	B53 conflict       TestPoliciesAddUp, TestPoliciesOfTheSameSecondAreOrderedByName; test/scenarios/b53-policies-add-up.yaml
//	B55 GitOps         TestADurationKeepsItsSpelling, TestSpellingsOfAMinute, TestTenSyncsFindNoDifference
//	                   test/api: TestB55SpellingsStay
//	B57 leadership     TestALeaderThatSleptEnds; test/chaos: leader paused for 40 s, under load
//	                   internal/redisstore: TestB57APausedLeaderWritesNothing
//	B59 start-up       TestAMissingRightIsNamed, TestAMissingRightInItsOwnNamespaceEndsTheStart, TestRolesInOneNamespaceAreEnough
//	B61 integrity      TestBadRowsReachTwoHundredPods, TestACorruptRowIsReplaced,
//	                   TestDamagedKeysTroubleNobodyElse
//	                   internal/redisstore: TestAControllerReplacesKeysOfAnotherType, TestAnEnforcerGoesOnOverKeysOfAnotherType
//	                   internal/policy: TestB61BadRowsAreRefusedWhole, TestEncodeRowRefusesWhatADecoderRefuses
//	                   internal/enforcer: TestLastGoodRowStays, TestAHerdReadsSpreadAndBacksOff
//
// And to which line of how writes are fenced:
//
//	a reader never goes back                  TestALeaderThatSleptEnds; internal/enforcer: TestLastGoodRowStays
//	the confirmed leader is never locked out  TestALeaderGoesOnAfterItsAPIServerWasRestored
//	the epoch is the Lease's, read live       TestARecreatedLeaseIsTheSameInstallation
//	a refused write: not the holder, so end   TestWithoutElectionTheLastOneStartedWrites, TestALeaderThatSleptEnds
//	a refused write: the holder goes above    TestALeaderGoesOnAfterItsAPIServerWasRestored, TestARestoredRedisTakesNothingBack
//	a lower revision, an equal one, a list or a generation that is older
//	                                          internal/redisstore: TestPublishRefusesWhatGoesBack
//	a cache that is behind                    controllers: TestARefusedStaleRowIsCompiledFromTheLiveList, TestACacheThatIsBehindRemovesNoLimits
//	a row of a newer version                  TestARowOfANewerControllerIsLeftAlone
//	another owner                             TestTwoInstallationsOnOneRedis; internal/redisstore: TestATableHasOneOwnerUntilItIsSilent
//	two leaders at a time                     TestWithoutElectionTheLastOneStartedWrites
//	a revision is used once                   controllers: TestARevisionIsUsedOnce
//	a fence that is none is one that was lost internal/redisstore: TestADamagedFenceLetsNobodyGoBack
//	a table that was lost                     TestEverythingComesBackWithRedis, TestALostRowComesBackAtOnceWhenAnEnforcerMissesIt
package controller
