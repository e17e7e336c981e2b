"""Lexicon of captions: word classes, verbs in all their forms, roles of prepositional phrases and adverbs."""

from __future__ import annotations

from collections.abc import Iterator


def bag(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


_PREPOSITIONS = {
    "ARGM-LOC": """in on at inside near behind beside between among outside above below within beneath underneath under
        alongside amongst amid next by upon throughout around over""",
    "ARGM-DIR": "from into onto through across along toward towards up down off out past to via",
    "ARGM-TMP": "during after before until since",
    "ARGM-MNR": "with without like",
    "ARGM-PRP": "for",
    "ARGM-PRD": "as",
    "ARG1": "about of",
    "ARG2": "against",
}
_ADVERBS = {
    "ARGM-TMP": "then now again first finally once twice already always never later afterwards meanwhile today",
    "ARGM-LOC": "here there outdoors indoors upstairs downstairs somewhere elsewhere inside outside nearby",
    "ARGM-DIR": """away back forth forward forwards backward backwards apart aside ahead sideways up down off out
        around over along through across by past in on""",
    "ARGM-MNR": "together alone well fast hard",
    "ARGM-ADV": "also only even almost",
}
_BY_PREPOSITION = {word: role for role, words in _PREPOSITIONS.items() for word in words.split()}
_BY_ADVERB = {word: role for role, words in _ADVERBS.items() for word in words.split()}
_NO_MANNER = frozenset(
    ["really", "only", "nearly", "apparently", "basically", "actually", "recently", "currently"]
)

# Verbs after which `to` is a direction.
MOTION = bag(
    """go walk run drive ride come move jump fly swim climb crawl travel slide ski race roll fall march step
    skate surf leap rush dance return arrive sail head jog wander enter flow bounce skateboard trot swing
    sprint chase"""
)
# Verbs whose subject undergoes rather than acts.
UNDERGOING = frozenset(["be", "fall", "happen", "appear", "die", "disappear", "seem"])
_TOPICS = {
    "to": ("listen",),
    "at": ("look", "stare", "laugh", "gaze", "smile", "wave", "point", "yell", "aim"),
    "for": ("look", "wait"),
}
_GIFTS = bag("make buy cook prepare bake get build provide perform sing open play")
_WITH = bag(
    """play talk speak fight dance chat sit stand walk interact meet argue sing wrestle live compete practice"""
)
_AGENTS = bag(
    """person people boy boys girl girls guy guys kid kids child children lady ladies baby babies him her them me us
    someone somebody friend friends family mother father mom dad son daughter wife husband brother sister student
    students host judge judges crowd audience group team couple band chef actress character characters others himself
    herself themselves he she they who dog dogs cat cats puppy puppies kitten kittens horse horses animal animals bird
    birds monkey monkeys elephant bear lion fish male female players player singer dancer dancers teacher reporter
    car cars truck vehicle train airplane plane"""
)


def agent(words: list[str]) -> bool:
    """Whether a phrase names a person, an animal or a vehicle."""
    return any(word in _AGENTS or word.endswith(("man", "men", "ist", "ists")) for word in words)


def preposition_role(
    preposition: str, *, verb: str, passive: bool, has_object: bool, phrase: list[str]
) -> str:
    """Return the role of a prepositional phrase.

    Args:
        preposition: first word.
        verb: base form of the verb.
        passive: whether the verb is passive.
        has_object: whether an object comes between the verb and the phrase.
        phrase: words after the preposition.
    """
    if preposition == "by" and passive:
        return "ARG0"
    if verb in _TOPICS.get(preposition, ()):
        return "ARG1"
    if preposition == "to" and verb not in MOTION:
        return "ARG2"
    if preposition == "for" and has_object and verb in _GIFTS:
        return "ARG2"
    if preposition == "with" and agent(phrase):
        return "ARGM-COM" if verb in _WITH or not has_object else "ARGM-MNR"
    if preposition in ("around", "over") and verb in MOTION:
        return "ARGM-DIR"
    if preposition in ("about", "of") and has_object:
        return "ARG2"
    return _BY_PREPOSITION.get(preposition, "ARGM-ADV")


def adverb_role(adverb: str) -> str | None:
    """Return the role of an adverb; None for one that does not modify a verb, such as `very`."""
    if adverb in _BY_ADVERB:
        return _BY_ADVERB[adverb]
    return "ARGM-MNR" if adverb.endswith("ly") and adverb not in _NO_MANNER else None


# Forms of a verb, as bits: `cut` is BASE, PAST and PARTICIPLE.
BASE, THIRD, ING, PAST, PARTICIPLE = 1, 2, 4, 8, 16

# + marks a last consonant that is doubled, as in stopped; * a verb whose bare form is as often a noun or an adjective.
_REGULAR = """
abandon accept achieve act* add adjust admire advance advertise advise agree aim allow analyze announce answer*
apologize appear applaud apply appreciate approach argue arrange arrest arrive ask assault assemble assess assist
attach attack* attempt attend attract audition avoid backflip bake balance bang bark bat+* bathe battle beg+ behave
believe bike blare blend blindfold blink block bob+ boil bounce bow* brag+ braid breathe brief bruise brush* bully
bump burn bury bustle call* camp* capture care* caress carry cartwheel carve cause* celebrate challenge change* chant
charge* chase chat+ check* cheer* chew chop+ circle* clap+ clean* clear* click climb close* code* collaborate collapse
collect color* comb* combine comfort command* comment* commentate compare compete complain complete compliment compose
concentrate conduct confess confront confuse congratulate connect consider construct contain continue converse convert
convince cook* cool copy correct costume* cough count cover* crack cradle crash* crawl create criticize crochet cross*
cruise crush cry cuddle curl cycle dance* dangle dash deal* debate debut decide declare decorate defeat defend delight
deliver demonstrate depict describe destroy develop dice die dine dip+ direct disable disappear disassemble discover
discuss disguise dismount display* dissolve distribute dive* divide dodge double drag+ drain dress* dribble drift
drip+ drop+* drown drum+* dry* dub+ duel dunk edit educate elaborate embrace emerge emphasize enclose encounter
encourage end* endorse engage enhance enjoy enter entertain entice escape evaluate examine exchange exclaim exercise*
exfoliate exit expect explain explode explore express face* fail faint fasten feast feature* fetch fiddle fill film*
finish fire* fish* fix flail flap+ flash* flavor* flee flip+* flirt+ float flood flow* flutter focus* fold follow forge
frost frown fry gallop gather gaze gesture giggle glide glow glue goof govern grab+ grate graze greet grill groom
groove guess guide* hammer* hand* handcraft handle happen harass harvest hatch haul head* heat help* highlight hike
hint hop+* host* hover howl hug+* hula hunt hurdle hurry hypnotize identify ignite illustrate imagine imitate
impersonate impress improve include inflate inform inhale inject injure insert inspect inspire install instruct insult
interact interrupt interview* introduce invade invent investigate invite involve iron* jam+* jerk jet+ jog+ join joke*
judge juggle jump* kick* kill kiss* knead knit+ knock knot+ lament land* laugh* launch leak leap lecture* lick lift
like* line* lip+* lip-sync list* listen live* load lock* loiter look* lounge love lower mail manage manufacture march
marinate marry mash massage* measure meditate melt mention meow merge mess mime mimic mingle miss mix* mold mop+
mount* mourn move* mow munch name narrate navigate need nibble nod+ notice nurse* nuzzle observe obtain occur offer
ogle open* operate order* organize overlook overtake own* pack* paddle paint* pan+* panic* parade park* participate
pass paste* pat+ patrol+ pause paw peck pedal peek peel perch perform pester pet+ photograph pick pilot pinch pitch*
place* plan+* plant* plate* play* plead pluck point* poison poke polish pop+* portray pose* position pound pour power*
practice practise praise prance prank pray preach prep+ prepare present* press* pretend prevent preview* print*
proceed produce promote propel+ propose protest prove provide puff pull pump punch* purchase pursue push quiz race*
raise ram+ ramble rap+ reach react realize rebuild recall receive recite recommend record* recover reduce reel reenact
refer+ refill reflect refuse rehearse relax release remind remodel remove rent repair repay repeat repel+ replace
reply report* represent require rescue respect respond rest* restrain retire retrieve return reveal review* ring*
rinse roam roar roast rob+ rock* roll* rotate row* rub+ ruin rush sail salute saute save savor scan+ scare scatter
scold scoop score* scramble scrape scratch scream* scrub+ scuba search* seat* seem separate serve settle shampoo
shape* share shave shift ship+* shock shop+* shout shovel showcase shower* shred+ shriek shuffle sign* signal simmer
simulate sip+ sizzle skate skateboard sketch* ski* skip+ skydive slam+ slap+ slice* slip+ smash smell smile* smoke*
smooth* snack snap+ sneak sneeze sniff snip+ snorkel snowboard snuggle soak soar solve somersault spank spar+ spark
sparkle speed* spew spill splash* splatter spoon* spot+* spray* sprinkle sprint squat+ squeeze squirt stab+ stack*
stamp* stare start* stay steam steer step+* stir+ stitch* stomp stop+* strain stream* stretch stride strip+ stroke
stroll struggle strum+ strut+ study* stumble submerge succeed suggest sulk sunbathe supply surf* surprise surrender
surround swallow swat+ sway swear sweat swirl* swish switch swivel sync synchronize tackle tailgate talk* tango tap+
taste* tattoo* taunt tease telecast telephone test* thank thaw thrash thread* threaten throb tickle tie* tilt tip+*
toast* toss touch* tour* tow trace trade* train* transfer+ transform translate transport trap+* travel* treat* trek+
trick* trim+ trip+* trot+ try* tumble tune turn* tutor tweet twerk twirl twist type* unbox underline undress unfold
unload unlock unscrew unveil unwrap+ upload use* utilize vacuum vault* vibrate videotape view* visit* vlog+ volunteer
vomit wade wag+ wait walk* wander want warm* warn wash* waste watch* water* wave* weave weigh welcome weld whine whip+
whisk whisper whistle wiggle wink wipe wish witness wonder work* worry wow wrap+* wrestle yawn yell yodel zip+ zoom
"""
_IRREGULAR = """
be was been | beat beat beaten | become became become | begin began begun | bend bent bent | bite bit bitten
blow blew blown | break* broke broken | bring brought brought | build built built | buy bought bought
catch* caught caught | choose chose chosen | come came come | cut* cut cut | dig dug dug | do did done
draw drew drawn | drink* drank drunk | drive* drove driven | eat ate eaten | fall fell fallen | feed fed fed
feel felt felt | fight* fought fought | find found found | flee fled fled | fly flew flown | freeze froze frozen
get got got | give gave given | go went gone | grind ground ground | grow grew grown | hang hung hung | have had had
hear heard heard | hide hid hidden | hit* hit hit | hold held held | hurt hurt hurt | keep kept kept
kneel knelt knelt | know knew known | lay laid laid | lead led led | lean leaned leaned | learn learned learned
leave left left | lend lent lent | let let let | lie lay lain | light* lit lit | lose lost lost | make made made
meet met met | pay paid paid | put put put | read read read | ride* rode ridden | rise rose risen | run* ran run
say said said | see saw seen | sell sold sold | send sent sent | set set set | sew sewed sewn | shake shook shaken
shine shone shone | shoot* shot shot | show* showed shown | shut shut shut | sing sang sung | sink sank sunk
sit sat sat | sleep slept slept | slide slid slid | speak spoke spoken | spend spent spent | spin spun spun
spread* spread spread | stand stood stood | steal stole stolen | stick* stuck stuck | stride strode stridden
strike struck struck | swear swore sworn | sweep swept swept | swim* swam swum | swing* swung swung | take took taken
teach taught taught | tear tore torn | tell told told | think thought thought | throw* threw thrown
understand understood understood | wake woke woken | wear wore worn | win* won won | wind wound wound
write wrote written
"""
_DOUBLED = bag("begin cut dig get hit let put run set shut sit spin swim win")

# Plurals that do not end in -s.
PLURALS = bag("people men women children police kids crew they guys couple group team all both some others")
# Participles that are passive after a noun even without `by`.
STATES = bag(
    """dressed seated surrounded called named covered filled made based parked located written titled known mixed
    decorated topped attached painted"""
)
NO_ADVERBS = bag(
    """family belly jelly lovely friendly reply elderly early daily curly silly italy bully rally butterfly
    assembly lonely chilly deadly supply apply"""
)
# Words that look like a form of a verb and are mostly none in captions.
NOT_VERBS = bag(
    """thing something anything everything nothing ring king wing string spring morning evening ceiling clothing
    wedding pudding duckling earring sibling stocking inning lightning underwear lining railing ground red bed
    hundred naked kindred bored excited tired interested worried during including according regarding wooded
    crowded bearded amazing exciting interesting flooring upcoming lots species speed united ted need"""
)

_CLASSES = {
    "D": """a an the this that these those some any every each no another other both all several many few more most
        his her its their our my your one two three four five six""",
    "R": """i you he she it we they him them me us someone somebody anyone everyone everybody himself herself itself
        themselves others yourself there""",
    "P": """of in on at by for from with into onto about over under through across along around near behind beside
        between among inside outside above below against toward towards during after before without within upon
        off up down out beneath underneath past until since via like alongside amongst amid throughout including""",
    "T": "to",
    "C": "and or but & , ;",
    "S": "who whom which that what when while where how why because if whether than although whilst as whose",
    "X": "is are was were be been being am 's 're has have had 've having does do did get gets getting got",
    "M": "can could will would shall should may might must ca wo 'll 'd",
    "O": ". ! ? : \" ( ) - -- ' ` # * / n't not",
    "A": """then now again also just still too very really quickly slowly together alone away back forward forwards
        backward backwards here outdoors indoors upstairs downstairs first finally once twice already even
        always never only well forth fast currently later afterwards meanwhile today apart aside so almost
        somewhere else elsewhere ahead sideways nearby""",
}
CLOSED: dict[str, str] = {}  # tags of the words of the closed classes; `tagging.py` lists the tags
for _tag, _words in _CLASSES.items():
    for _word in _words.split():
        CLOSED.setdefault(_word, _tag)


def _verbs() -> Iterator[tuple[str, ...]]:
    """Yield base, form in -s, form in -ing, past and participle of each verb."""
    irregular = {
        verb.split()[0]: verb.split() for verb in _IRREGULAR.replace("\n", "|").split("|") if verb.strip()
    }
    for word in [*_REGULAR.split(), *irregular]:
        base = word.rstrip("+*")
        stem = base + base[-1] if "+" in word or base in _DOUBLED else base
        y = base.endswith("y") and base[-2] not in "aeiou"
        third = (
            base[:-1] + "ies"
            if y
            else base + ("es" if base.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")
        )
        e = base.endswith("e") and not base.endswith(("ee", "ye", "oe")) and len(base) > 2
        ing = base[:-2] + "ying" if base.endswith("ie") else (base[:-1] if e else stem) + "ing"
        past = base[:-1] + "ied" if y else stem + ("d" if base.endswith("e") else "ed")
        yield base, third, ing, *(irregular[word][1:] if word in irregular else (past, past))


NOUNISH = frozenset(word.rstrip("+*") for word in f"{_REGULAR} {_IRREGULAR}".split() if word.endswith("*"))
FORMS: dict[str, tuple[int, str]] = {}  # bits of the forms that a word can be, and the verb's base
for _base, *_forms in _verbs():
    for _bit, _form in zip((BASE, THIRD, ING, PAST, PARTICIPLE), (_base, *_forms), strict=True):
        if _form not in NOT_VERBS:
            FORMS[_form] = (FORMS.get(_form, (0, ""))[0] | _bit, FORMS.get(_form, (0, _base))[1])
