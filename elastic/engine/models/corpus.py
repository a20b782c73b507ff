"""Text that the tokenizer of `tiny` learns its merges from: our own words, in the shapes agents write.

The merges decide how many ids a text has, nothing else; every text can be encoded, as bytes at worst.
"""

from __future__ import annotations

from collections.abc import Iterator

WORDS = """
a able about above accept account across act action add address after again against age agent ago agree air
all allow almost alone along already also always am among amount an and animal another answer any anything
appear apple apply are area argument around arrive art as ask assistant at attempt away back bad bag bank
base be bear beautiful because become bed been before begin behind being believe below best better between
big bird black block blue board boat body book both bottom box boy branch bread break bridge bright bring
brother brown build building burn bus business but buy by byte call came can capital car card care carry
case cat catch cause cell center chance change character check child choice choose church circle city class
clean clear client clock close cloud code cold collect color column come command common company compare
complete computer condition connect consider contain content context continue control cook cool copy corner
correct cost could count country course cover create cross current cut dark data date daughter day dead deal
decide deep default degree delete describe desk detail develop did die different difficult dinner direct
directory discover do doctor does dog dollar done door double down draw dream drive drop dry during each ear
early earth east easy eat edge edit effect egg eight either else empty end enemy energy engine enough enter
error even evening event ever every everything exact example except execute exit expect explain eye face
fact fail fall false family far farm fast father fear feel few field fight file fill final find fine finger
finish fire first fish five float floor flow flower fly folder follow food foot for force forest forget form
forward found four free fresh friend from front fruit full function game garden gave general get girl give
glass go goal gold gone good grand grass gray great green ground group grow guess had hair half hand happen
happy hard has have he head hear heart heat heavy height hello help her here high hill him his history hit
hold hole home hope horse hot hour house how huge human hundred hunt hurt ice idea if image import important
in inch include indeed index input inside instead interest into iron is island it item its job join jump just
keep key kill kind king kitchen know lake land language large last late laugh law lay lead learn least leave
left leg length less let letter level library lie life lift light like limit line list listen little live
local log long look lose lost lot loud love low machine main make man many map mark market matter maximum may
me mean measure meet member memory men message metal method middle might mile milk million mind minimum
minute miss model modern moment money month moon more morning most mother mountain mouth move much music must
my name nation nature near necessary need never new next night nine no none noon nor north nose not note
nothing notice now number object ocean of off offer office often oil old on once one only open operation
option or orange order other our out output over own page paint pair paper parent part pass past path pay
people perhaps period person phone pick picture piece place plain plan plane plant play please point policy
poor port position possible power prepare present press pretty print problem process produce program project
promise prompt proof proper property prove public pull purple push put python question quick quiet quite
race rain raise ran range reach read ready real reason receive record red region remain remember remove
repeat reply report request require rest result return reward rich ride right ring rise river road rock role
room root round row rule run safe said sail salt same sand save say scale school science score sea search
season seat second secret section see seed seem select self sell send sense sentence sequence serve set seven
several shape share sharp she sheet ship shoe shop short should shoulder show side sign silent silver similar
simple since sing single sister sit six size skin sky sleep slow small smile snow so soft soil some son song
soon sort sound source south space speak special speed spell spend spring square stand star start state
station stay steel step still stone stop store story straight strange stream street string strong student
study style subject such sudden sugar suggest sum summer sun sure surface swim symbol system table tail take
talk tall task teach team tell ten term test text than thank that the their them then there these they thick
thin thing think third this those thought thousand three through throw time tiny to today together token
tomorrow too tool top total touch toward town track trade train travel tree triangle trip trouble true trust
try turn twelve twenty two type under understand unit until up update upon us use user usual valley value
variable various vary verb version very view village visit voice wait walk wall want war warm was wash watch
water wave way we weak weather week weight welcome well went were west what wheel when where which while
white who whole whose why wide wife wild will win wind window winter wise wish with within without woman
wonder wood word work world would write wrong yard year yellow yes yesterday yet you young your zero
"""

SHAPES = (
    '{"name": "WORD", "arguments": {"path": "WORD.txt", "content": "WORD"}}\n',
    "def WORD(self, WORD: int) -> str:\n    return WORD\n",
    "import WORD\nif not WORD:\n        raise ValueError('WORD')\n",
    "$ ls -la /home/WORD/WORD.py && cat WORD.md | grep WORD > out.json\n",
    "- WORD, WORD; (WORD) [WORD] <WORD> `WORD` = WORD != WORD\n",
    "I'll WORD the WORD. It's WORD! Don't WORD? You're WORD.\n\n",
)


def corpus() -> Iterator[str]:
    """Every word small and capitalised, at the start of a text and within it; then shapes and numbers.

    Short words come more often, as they do anywhere, so that most of them become one id.
    """
    for index, word in enumerate(WORDS.split()):
        yield f"{word.capitalize()} {word.capitalize()} {word}" + f" {word}" * max(2, 20 - 4 * len(word))
        yield SHAPES[index % len(SHAPES)].replace("WORD", word)
        yield f"{index} {index * index} {index / 8:.2f}"
